// Accessibility, as axe checks it: returns a sentence for each problem.
const problems = [];
const visible = (one) => one.getClientRects().length > 0 && getComputedStyle(one).visibility !== "hidden";
const short = (one) => one.outerHTML.slice(0, 140);
const nameOf = (one) => {
  const by = one.getAttribute("aria-labelledby");
  if (by) return by.split(/\s+/).map((id) => (document.getElementById(id) || {}).textContent || "").join(" ").trim();
  const label = one.labels && one.labels.length ? one.labels[0].textContent : "";
  return (one.getAttribute("aria-label") || label || one.textContent || one.getAttribute("title") || one.getAttribute("alt") || "").trim();
};
if (!document.documentElement.lang) problems.push("the page has no language");
if (!document.title.trim()) problems.push("the page has no title");
if (document.querySelectorAll("main").length !== 1) problems.push("there must be one main");
if (document.querySelectorAll("h1").length !== 1) problems.push("there must be one h1, not " + document.querySelectorAll("h1").length);
let level = 0;
for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
  if (!visible(heading)) continue;
  const own = Number(heading.tagName[1]);
  if (own > level + 1) problems.push("a heading is left out before: " + short(heading));
  level = own;
}
for (const one of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, [role=img], [role=region]")) {
  if (visible(one) && !nameOf(one)) problems.push("no name: " + short(one));
}
for (const image of document.querySelectorAll("img:not([alt])")) problems.push("no alternative: " + short(image));
const ids = Array.from(document.querySelectorAll("[id]"), (one) => one.id);
for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) problems.push("the id is there twice: " + id);
for (const one of document.querySelectorAll("[aria-labelledby]")) {
  if (!document.getElementById(one.getAttribute("aria-labelledby"))) problems.push("labelled by nothing: " + short(one));
}
for (const head of document.querySelectorAll("th:not([scope])")) problems.push("a head without scope: " + short(head));
for (const one of document.querySelectorAll(".scroll, pre")) {
  if (one.scrollWidth > one.clientWidth && one.tabIndex < 0) problems.push("cannot be scrolled by keyboard: " + short(one));
}
for (const one of document.querySelectorAll("[tabindex]")) if (one.tabIndex > 0) problems.push("an order of its own: " + short(one));
// Contrast of each text with what is behind it.
const parse = (color) => { const found = color.match(/[\d.]+/g).map(Number); return found.length > 3 ? found : [...found, 1]; };
const light = (color) => color.slice(0, 3).map((part) => part / 255).map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const behind = (one) => {
  for (let node = one; node; node = node.parentElement) {
    const color = parse(getComputedStyle(node).backgroundColor);
    if (color[3] > 0.99) return color;
  }
  return [255, 255, 255, 1];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || seen.has(one) || !visible(one) || one.closest("svg, [disabled], script, style, .hidden, .skip")) continue;
  seen.add(one);
  const style = getComputedStyle(one);
  const both = [light(parse(style.color)), light(behind(one))].sort((a, b) => b - a);
  const ratio = (both[0] + 0.05) / (both[1] + 0.05);
  const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) problems.push("contrast " + ratio.toFixed(2) + ": " + short(one));
}
// Not innerWidth: a phone shows what is too wide smaller.
if (document.documentElement.scrollWidth > document.documentElement.clientWidth + 1) problems.push("wider than the screen: " + document.documentElement.scrollWidth);
return Array.from(new Set(problems));

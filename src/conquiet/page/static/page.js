// Live updates, keys, the theme, and copying of commands. Everything else works without it.
"use strict";
(function () {
  const body = document.body;
  const state = document.getElementById("live-state");
  let isPaused = false;

  function say(text, kind) {
    if (!state) return;
    state.textContent = text;
    state.dataset.kind = kind;
  }

  // What the user has chosen and where the focus is, in a part that is replaced.
  function keep(part) {
    const checked = new Set(Array.from(part.querySelectorAll("input:checked"), (one) => one.value));
    const active = part.contains(document.activeElement) ? document.activeElement : null;
    const key = active && (active.getAttribute("href") || active.value || active.getAttribute("aria-label"));
    const scrolls = Array.from(part.querySelectorAll(".scroll"), (one) => one.scrollLeft);
    return { checked, key, tag: active && active.tagName, scrolls };
  }

  function restore(part, kept) {
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = kept.checked.has(box.value);
    part.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = kept.scrolls[index] || 0; });
    if (!kept.tag) return;
    for (const one of part.querySelectorAll(kept.tag)) {
      if ((one.getAttribute("href") || one.value || one.getAttribute("aria-label")) === kept.key) {
        one.focus({ preventScroll: true });
        return;
      }
    }
  }

  function hasSelection(part) {
    const selection = window.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function update(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    for (const part of document.querySelectorAll("[data-part][id]")) {
      const next = fresh.getElementById(part.id);
      if (!next || next.outerHTML === (part.dataset.shown || part.outerHTML) || hasSelection(part)) continue;
      const text = next.outerHTML;
      const kept = keep(part);
      const adopted = document.adoptNode(next);
      part.replaceWith(adopted);
      adopted.dataset.shown = text;
      restore(adopted, kept);
    }
  }

  // A browser opens few connections to a host: a page that is not looked at gives its own back.
  function listen() {
    const address = body.dataset.live || body.dataset.tail;
    if (!address || !window.EventSource) return;
    let source = null, timer = 0, wasOpen = false;

    function close() {
      window.clearTimeout(timer);
      timer = 0;
      if (source) source.close();
      source = null;
    }

    function open() {
      if (source || document.hidden) return;
      source = new EventSource(address + (wasOpen && body.dataset.tail ? "&again=1" : ""));
      source.addEventListener("open", () => {
        wasOpen = true;
        window.clearTimeout(timer);
        timer = 0;
        if (!isPaused) say("live", "live");
      });
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) {
          close();
          say("not connected", "lost");
          timer = window.setTimeout(open, 10000);
        } else if (!timer) {
          // The server ends it from time to time; the browser opens it again at once.
          timer = window.setTimeout(() => say("not connected", "lost"), 5000);
        }
      });
      source.addEventListener("problem", (event) => say(JSON.parse(event.data), "lost"));
      source.addEventListener("view", (event) => {
        if (isPaused) return;
        update(JSON.parse(event.data));
        say("live", "live");
      });
      source.addEventListener("message", (event) => addRow(event.data));
    }

    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", open);
    open();
  }

  function addRow(data) {
    const rows = document.getElementById("tail");
    if (!rows || !data || isPaused) return;
    const holder = document.createElement("template");
    holder.innerHTML = JSON.parse(data);
    const row = holder.content.firstElementChild;
    if (rows.querySelector('[data-id="' + CSS.escape(row.dataset.id) + '"]')) return;
    rows.prepend(row);
    while (rows.rows.length > 200) rows.deleteRow(-1);
  }

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function switchTheme() {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      window.localStorage.setItem("conquiet-theme", theme);
    } catch (error) {
      // Then it lasts as long as this page.
    }
  }

  function moveRow(step) {
    const links = Array.from(document.querySelectorAll("table.rows tbody tr"), (row) => row.querySelector("a")).filter(Boolean);
    const here = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = links[Math.max(0, Math.min(links.length - 1, here < 0 ? 0 : here + step))];
    if (next) next.focus();
  }

  const keys = {
    "/": () => { const field = document.querySelector("[data-search]"); if (field) field.focus(); },
    "?": () => document.getElementById("keys").showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    t: switchTheme,
    p: () => { isPaused = !isPaused; say(isPaused ? "paused" : "live", isPaused ? "paused" : "live"); },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    const link = document.querySelector('[data-key="' + CSS.escape(event.key) + '"]');
    const action = keys[event.key] || (link && (() => link.click()));
    if (!action) return;
    event.preventDefault();
    action();
  });

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (!copy) return;
    const done = () => { copy.textContent = "copied"; window.setTimeout(() => { copy.textContent = "copy"; }, 1500); };
    if (navigator.clipboard) navigator.clipboard.writeText(copy.dataset.copy).then(done, () => {});
  });

  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-all]")) return;
    for (const box of event.target.form.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
  });

  // A form of chosen rows without any says so, instead of asking for all.
  document.addEventListener("submit", (event) => {
    const boxes = Array.from(event.target.querySelectorAll("input[name=id][type=checkbox]"));
    if (!boxes.length || boxes.some((box) => box.checked)) return;
    event.preventDefault();
    say("choose at least one row", "paused");
    boxes[0].focus();
  });

  const theme = document.getElementById("theme");
  if (theme) theme.addEventListener("click", switchTheme);
  listen();
})();

"""The tasks of the shop, as its own page and worker load them; imports nothing of the tests."""

from __future__ import annotations

from conquiet.tasks import TaskApp

#: It does something if it is not escaped.
SCRIPT = "<script>document.title='owned'</script>"
QUEUE = "mail"


class NoStockError(Exception):
    """An order that cannot be delivered."""


def declare(app: TaskApp) -> TaskApp:
    """The app with the tasks of the shop."""

    @app.task(name="shop.send", queue=QUEUE, max_retries=0)
    def send(to: str) -> str:
        if to == "nobody":
            raise NoStockError(f"no address {SCRIPT}")
        return f"sent to {to}"

    @app.task(name="shop.add", queue=QUEUE)
    def add(one: int, two: int) -> int:
        return one + two

    @app.task(name="shop.total", queue=QUEUE)
    def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="shop.later", queue="later")
    def later(one: int, two: int) -> int:
        return one + two

    return app


app = declare(TaskApp())

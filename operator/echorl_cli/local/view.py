"""What a person sees of a run: a live view on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from echorl_cli.local.eta import Eta, clock
from echorl_cli.local.outcome import Snapshot
from echorl_core.names import Phase
from echorl_core.wire.run_state import EngineView, RunState

_WAITING_INTERVAL_S = 10.0
_UNKNOWN = RunState(uid="", attempt=0, phase=Phase.STARTING)
"""What is shown before the orchestrator has told anything."""


def restarts_text(snapshot: Snapshot) -> str:
    """``2 (trainer 1, inference 1)``."""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(snapshot.restarts.items()))
    total = sum(snapshot.restarts.values())
    return f"{total} ({causes})" if causes else str(total)


def waiting_text(snapshot: Snapshot) -> str:
    """What the run waits for; the orchestrator knows best once it answers."""
    told = None if snapshot.state is None else snapshot.state.waiting_for
    return told or snapshot.reason or "-"


def rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Label and value of everything but the progress bar."""
    state = snapshot.state or _UNKNOWN
    played = state.episodes
    counts = (("running", played.running), ("finished", played.finished), ("failed", played.failed))
    return [
        ("reward", _number(state.reward)),
        ("env-token NLL", f"{_number(state.env_nll)} nats"),
        ("sampled", f"{_number(state.rates.sampled_tokens_per_s, ',.0f')} tokens/s"),
        ("trained", f"{_number(state.rates.trained_tokens_per_s, ',.0f')} tokens/s"),
        ("staleness", f"at most {_number(state.policy.staleness_max, 'd')}"),
        ("policy", f"version {_number(state.policy.trained, 'd')}"),
        ("engines", "\n".join(_engine_versions(state.engines)) or "-"),
        ("episodes", ", ".join(f"{_number(count, 'd')} {name}" for name, count in counts)),
        ("checkpoint", f"step {_number(state.checkpoint.step, 'd')}"),
        ("restarts", restarts_text(snapshot)),
        ("waits for", waiting_text(snapshot)),
    ]


def render(snapshot: Snapshot, eta_s: float | None) -> RenderableType:
    """The live view of one moment."""
    step = (snapshot.state or _UNKNOWN).step or 0
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True, justify="right")
    times = f"{clock(snapshot.elapsed_s)} elapsed, {clock(eta_s)} left"
    progress = ProgressBar(total=max(1, snapshot.max_steps), completed=step)
    bar.add_row(f"step {step}/{snapshot.max_steps}", progress, times)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for label, value in rows(snapshot):
        facts.add_row(label, Text(value))
    title = f"{snapshot.name}: {snapshot.phase}, attempt {snapshot.attempt}"
    return Panel(Group(bar, facts), title=Text(title), title_align="left")


def step_line(snapshot: Snapshot, eta_s: float | None) -> str:
    """One line about the newest step."""
    state = snapshot.state or _UNKNOWN
    served = state.policy.served
    lowest, highest = (None, None) if served is None else (served.min, served.max)
    parts = [
        f"step {state.step}/{snapshot.max_steps}",
        f"reward {_number(state.reward)}",
        f"env_nll {_number(state.env_nll)}",
        f"sampled {_number(state.rates.sampled_tokens_per_s, '.0f')} tok/s",
        f"trained {_number(state.rates.trained_tokens_per_s, '.0f')} tok/s",
        f"engines v{_number(lowest, 'd')}-v{_number(highest, 'd')}",
        f"staleness {_number(state.policy.staleness_max, 'd')}",
        f"{clock(snapshot.elapsed_s)} elapsed",
        f"{clock(eta_s)} left",
    ]
    return "  ".join(parts)


class PlainView:
    """One line per step, event and change of phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._eta = Eta()
        self._step: int | None = None
        self._phase: tuple[Phase, str, int] | None = None
        self._waiting = ("", -_WAITING_INTERVAL_S)

    def __enter__(self) -> "PlainView":
        """Return the view, as ``LiveView`` does."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def event(self, text: str) -> None:
        """See ``View``."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """See ``View``."""
        phase = (snapshot.phase, snapshot.reason, snapshot.attempt)
        if phase != self._phase:
            self._phase = phase
            why = f": {snapshot.reason}" if snapshot.reason else ""
            self.event(f"[{clock(snapshot.elapsed_s)}] {snapshot.phase}, attempt {snapshot.attempt}{why}")
        step = (snapshot.state or _UNKNOWN).step
        if step is not None and step != self._step:
            self._eta.note(step, snapshot.elapsed_s)
            if step > 0:
                self.event(step_line(snapshot, self._eta.eta_s(snapshot.max_steps, snapshot.elapsed_s)))
            self._step = step
        self._show_waiting(snapshot)

    def _show_waiting(self, snapshot: Snapshot) -> None:
        waiting, (told, at_s) = waiting_text(snapshot), self._waiting
        if self._step or snapshot.state is None or waiting == told:
            return
        if snapshot.elapsed_s - at_s >= _WAITING_INTERVAL_S:
            self._waiting = (waiting, snapshot.elapsed_s)
            self.event(f"[{clock(snapshot.elapsed_s)}] waits for {waiting}")


class LiveView:
    """A panel that is drawn anew in place; events scroll above it."""

    def __init__(self, console: Console) -> None:
        self._eta = Eta()
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> "LiveView":
        """Take over the terminal's last lines."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture where it is."""
        self._live.stop()

    def event(self, text: str) -> None:
        """See ``View``."""
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """See ``View``."""
        step = (snapshot.state or _UNKNOWN).step
        if step is not None:
            self._eta.note(step, snapshot.elapsed_s)
        self._live.update(render(snapshot, self._eta.eta_s(snapshot.max_steps, snapshot.elapsed_s)))


def _number(value: float | None, form: str = ".3f") -> str:
    """A value of the state as text; a dash where there is none."""
    if value is None:
        return "-"
    return format(round(value) if form.endswith("d") else value, form)


def _engine_versions(engines: Sequence[EngineView]) -> list[str]:
    """One word per engine: its name, and the version that it holds or why it holds none."""
    words = []
    for engine in engines:
        held = f"v{engine.version}" if engine.version is not None else "no version"
        words.append(f"{engine.name} {held} ({engine.state})")
    return words

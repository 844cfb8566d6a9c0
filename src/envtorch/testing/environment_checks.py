"""`check_env`: everything there is to check about an environment, in one call and one report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envtorch.env import Environment, EnvironmentSource, EnvSpec, load_object
from envtorch.errors import ConfigurationError
from envtorch.protocol.codec import Codec
from envtorch.testing import checks, isolation, together
from envtorch.testing.declaration import wrong_declaration
from envtorch.testing.report import Finding, NotRun, Report, Severity
from envtorch.testing.speed import speed_notes
from envtorch.testing.subject import Subject, made_up_actions
from envtorch.tracebacks import author_line, author_traceback

__all__ = ["check_env"]

CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    checks.contract,
    checks.serialisability,
    checks.rewards,
    checks.episodes,
    checks.values,
    checks.determinism,
    together.together,
    isolation.isolation,
    isolation.threads,
    isolation.process,
    isolation.leaks,
)

DOES_NOT_RUN = "the environment does not run"


def check_env(
    env: EnvironmentSource,
    action_cls: type | None = None,
    observation_cls: type | None = None,
    *,
    actions: Sequence[Mapping[str, Any]] | None = None,
    reset_options: Mapping[str, Any] | None = None,
    reward_range: tuple[float, float] | None = None,
    seed: int = 7,
    steps: int = 5,
    progress: Callable[[str], None] = lambda check: None,
) -> Report:
    """Play an environment every way a server and a trainer would, and report what is not right.

    `actions` is an episode's worth, each as a client would send it; without it they are made up from the
    action's schema, which finds less where most actions are invalid. The environment must be a class or
    a factory: several are made. `progress` is called with the name of each check before it runs.
    """
    source = load_object(env) if isinstance(env, str) else env
    if isinstance(source, Environment):
        raise ConfigurationError("check_env makes several environments: pass the class, or a factory")
    spec: EnvSpec[Any, Any, Any] = EnvSpec.of(source, action=action_cls, observation=observation_cls)
    codec = Codec(spec)
    name = getattr(source, "__name__", spec.name)
    wrong = wrong_declaration(source)
    if wrong is not None:
        return _only(name, wrong)
    progress("construction")
    try:
        with isolation.undisturbed():
            chosen = actions if actions is not None else made_up_actions(source, codec, steps, seed)
    except (Exception, SystemExit) as error:  # an author's code
        return _only(name, _crashed("construction", error))
    subject = Subject(name, source, codec, chosen, dict(reset_options or {}), seed, reward_range)
    return _examined(subject, progress)


def _only(name: str, finding: Finding) -> Report:
    """The report on an environment that cannot be played at all."""
    names = (check.__name__ for check in CHECKS)
    unrun = {check: DOES_NOT_RUN for check in names if check != finding.check}
    return Report(name, (finding.check,), (finding,), unrun)


def _examined(subject: Subject, progress: Callable[[str], None]) -> Report:
    findings: list[Finding] = []
    not_run: dict[str, str] = {}
    ran: list[str] = []
    for check in CHECKS:
        name = check.__name__
        broken = [finding for finding in findings if _breaks_contract(finding)]
        if broken:
            has_raised = any(finding.traceback for finding in broken)
            not_run[name] = DOES_NOT_RUN if has_raised else "the contract is broken; correct that first"
            continue
        progress(name)
        try:
            with isolation.undisturbed():
                findings += check(subject)
        except NotRun as reason:
            not_run[name] = str(reason)
            continue
        except (Exception, SystemExit) as error:  # an author's code: it is the finding
            findings.append(_crashed(name, error))
        ran.append(name)
    is_broken = any(finding.traceback or _breaks_contract(finding) for finding in findings)
    progress("speed")
    with isolation.undisturbed():
        notes = () if is_broken else tuple(speed_notes(subject))
    return Report(subject.name, tuple(ran), tuple(findings), not_run, notes)


def _breaks_contract(finding: Finding) -> bool:
    return finding.check == "contract" and finding.severity is Severity.ERROR


def _crashed(check: str, error: BaseException) -> Finding:
    line = author_line(error)
    at = f" ({line})" if line else ""
    return Finding(
        check,
        f"the environment raised {error!r}{at}",
        "correct that line; if the action is one that the environment may refuse, pass `actions=` "
        "(--actions) with valid ones",
        traceback=author_traceback(error) or repr(error),
    )

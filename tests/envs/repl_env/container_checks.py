"""Children where namespaces are forbidden. Run as a module, by a user whom the interpreter can serve."""

from envtorch.envs.repl_env import REPLEnv, REPLEnvironment, ScriptedModel
from envtorch.envs.repl_env.events import Event, Forked
from envtorch.sandbox import Policy
from envtorch.settings import REPLSettings


def main() -> None:
    events: list[Event] = []

    def make() -> REPLEnvironment:
        return REPLEnvironment(
            model=ScriptedModel(lambda request: "```repl\nFINAL(['x' in globals(), context])\n```"),
            policy=Policy(namespaces=False),
            settings=REPLSettings(),
            observer=events.append,
        )

    with REPLEnv.local(make) as env:
        env.reset(context="whole")
        env.execute("x = 1")
        print(env.execute("rlm_query('q', context='sent')").observation.result.stdout)
    print(*(event.how for event in events if isinstance(event, Forked)))


if __name__ == "__main__":
    main()

"""An agent's code in a sandbox, with no server and no engine. Run: python examples/local_coding_env.py"""

from envtorch.envs.coding_env import CodeAction, CodingEnv

EPISODE = (
    "numbers = [3, 1, 2]",
    "print(sorted(numbers))\nsum(numbers)",
    "def mean(values):\n    return sum(values) / len(values)\nmean([])",
    "open('/etc/shadow')",
    "while True: pass",
    "mean(numbers)",
)


def main() -> None:
    with CodingEnv.local() as env:
        env.reset(seed=7)
        for code in EPISODE:
            result = env.step(CodeAction(code=code), timeout_s=2.0)
            seen = result.observation
            print(f">>> {code.splitlines()[-1]}")
            print(f"{seen.stdout}{seen.stderr}{seen.value or ''}".rstrip() or "(nothing)")
            print(f"    {seen.outcome}, exit code {seen.exit_code}\n")
        print(f"{env.state().step_count} steps; the last exit code was {env.state().last_exit_code}")


if __name__ == "__main__":
    main()

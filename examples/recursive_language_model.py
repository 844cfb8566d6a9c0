"""A recursive language model counts needles. Run: python examples/recursive_language_model.py

Without arguments the model is a script. With an address and a model it is a real one:

    python examples/recursive_language_model.py http://127.0.0.1:11434/v1 qwen3-coder
"""

import random
import sys

from envtorch.envs.repl_env import Budget, OpenAICompatible, RLMRunner, ScriptedModel
from envtorch.envs.repl_env.language_models import LanguageModel, Request

TASK = "How many times does the word needle occur in the context? Answer with a number."

DIVIDE = """I divide the words among four children.
```repl
words = context.split()
size = len(words) // 4 + 1
parts = [words[i : i + size] for i in range(0, len(words), size)]
counts = rlm_query_batched(["How often is the word needle in the list `context`?"] * len(parts), parts)
print(counts)
```
Then I add up.
```repl
FINAL(sum(int(count) for count in counts))
```
"""
COUNT = "```repl\nn = context.count('needle')\n```\nFINAL_VAR(n)"


def script(request: Request) -> str:
    return DIVIDE if request.node == "0" else COUNT


def haystack() -> str:
    chance = random.Random(7)
    words = ["hay"] * 250_000
    for place in chance.sample(range(len(words)), 1000):
        words[place] = "needle"
    return " ".join(words)


def main() -> None:
    model: LanguageModel = ScriptedModel(script)
    if len(sys.argv) == 3:
        model = OpenAICompatible(sys.argv[1], sys.argv[2])
    budget = Budget(calls=100, depth=1, time_s=600)
    result = RLMRunner(model, budget=budget, trajectory="needles.jsonl", show=True).run(
        TASK, context=haystack()
    )
    print(f"The answer: {result.answer} ({result.reason}, {result.usage})")
    again = RLMRunner.replaying("needles.jsonl", budget=budget).run(TASK, context=haystack())
    print(f"The same from the record: {again.answer}")


if __name__ == "__main__":
    main()

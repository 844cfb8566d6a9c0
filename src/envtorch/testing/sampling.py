"""Actions made up from their JSON schema, for environments whose author gives no examples."""

import random
from collections.abc import Mapping
from typing import Any

__all__ = ["sample"]

MAX_DEPTH = 6


def sample(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A value that fits a schema, as far as the schema says what fits."""
    return _sample(schema, schema.get("$defs", {}), rng, 0)


def _sample(schema: Any, defs: Mapping[str, Any], rng: random.Random, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _sample(defs.get(schema["$ref"].rpartition("/")[2]), defs, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if schema.get("examples"):
        return rng.choice(schema["examples"])
    for alternatives in ("anyOf", "oneOf"):
        if schema.get(alternatives):
            return _sample(rng.choice(schema[alternatives]), defs, rng, depth + 1)
    return _of_type(schema, defs, rng, depth)


def _of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], rng: random.Random, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else None)
    match kind:
        case "object":
            required = set(schema.get("required", ()))
            chosen = [
                name
                for name in schema.get("properties", {})
                if name in required or (name != "metadata" and rng.random() < 0.5)
            ]
            return {name: _sample(schema["properties"][name], defs, rng, depth + 1) for name in chosen}
        case "array":
            size = schema.get("minItems", rng.randint(1, 3))
            return [_sample(schema.get("items", {}), defs, rng, depth + 1) for _ in range(size)]
        case "integer":
            low, high = _bounds(schema, 0, 3)
            return rng.randint(int(low), int(high))
        case "number":
            low, high = _bounds(schema, 0.0, 1.0)
            return round(rng.uniform(low, high), 3)
        case "boolean":
            return rng.random() < 0.5
        case "string":
            text = rng.choice(["a", "go", "left", "1", "hello"])
            return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 100)]
    return None


def _bounds(schema: Mapping[str, Any], low: float, high: float) -> tuple[float, float]:
    low = schema.get(
        "minimum", schema.get("exclusiveMinimum", low - 1) + 1 if "exclusiveMinimum" in schema else low
    )
    high = schema.get(
        "maximum", schema.get("exclusiveMaximum", 0) - 1 if "exclusiveMaximum" in schema else max(high, low)
    )
    return low, max(low, high)

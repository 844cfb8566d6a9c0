"""How fast an endpoint may be asked: requests in a second, tokens in a minute."""

from dataclasses import dataclass, field

from envtorch.errors import ConfigurationError

__all__ = ["EndpointPace"]

BURST_S = 10.0
"""How many seconds' worth of tokens may be spent at once."""
REMEMBERED = 100
"""About how many answers make the expected number of tokens."""


@dataclass(slots=True)
class EndpointPace:
    """Says when the next request may begin. Times are those of one monotonic clock, in seconds.

    Tokens are in a bucket that fills at an even rate. How many a request uses is known when it is answered:
    it begins when the bucket has what answered requests used on average, and takes so many; `settle` corrects
    that to what the endpoint says. Without such figures, every request counts as `expected` tokens.
    """

    requests_per_s: float | None = None
    tokens_per_minute: float | None = None
    expected: float = 0.0
    """Tokens of a request, until one was answered."""
    _next_at: float = 0.0
    _level: float = field(init=False)
    """Tokens in the bucket. Below 0, more were taken than expected."""
    _filled_at: float = 0.0
    _answered: int = 0

    def __post_init__(self) -> None:
        for name in ("requests_per_s", "tokens_per_minute"):
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ConfigurationError(f"{name} is more than 0")
        self._level = self._capacity

    @property
    def _rate(self) -> float:
        """Tokens in a second."""
        return (self.tokens_per_minute or 0.0) / 60

    @property
    def _capacity(self) -> float:
        return self._rate * BURST_S

    def wait_s(self, now: float) -> float:
        """How long the next request has to wait; 0 if it may begin."""
        self._fill(now)
        missing = min(self.expected, self._capacity) - self._level
        for_tokens_s = missing / self._rate if self.tokens_per_minute is not None else 0.0
        return max(0.0, self._next_at - now, for_tokens_s)

    def begin(self, now: float) -> float:
        """A request begins; the tokens that it is expected to take, for `settle`."""
        self._next_at = max(self._next_at, now) + (1 / self.requests_per_s if self.requests_per_s else 0.0)
        self._fill(now)
        self._level -= self.expected
        return self.expected

    def settle(self, taken: float, used: float) -> None:
        """A request that began with `taken` has used so many tokens: none, if it was refused."""
        self._level += taken - used
        if used:
            self._answered += 1
            self.expected += (used - self.expected) / min(self._answered, REMEMBERED)

    def pause(self, until: float) -> None:
        """No request begins before that time."""
        self._next_at = max(self._next_at, until)

    def _fill(self, now: float) -> None:
        self._level = min(self._capacity, self._level + self._rate * max(0.0, now - self._filled_at))
        self._filled_at = max(self._filled_at, now)

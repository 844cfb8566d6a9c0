"""All the measurements, in the order in which they run and are told."""

from bench.measure import Measure
from bench.measures.batches import Batches
from bench.measures.clients import Arrays, Large, Opening, OverHttp, RoundTrip
from bench.measures.coding import CodingEpisodes
from bench.measures.idle import Idle
from bench.measures.imports import ClientImport, ServerImport
from bench.measures.sandboxes import SandboxCosts
from bench.measures.scaling import Scaling, Together
from bench.measures.steps import Steps

MEASURES: tuple[Measure, ...] = (
    Steps(),
    RoundTrip(),
    Batches(),
    Opening(),
    OverHttp(),
    Large(),
    Arrays(),
    CodingEpisodes(),
    SandboxCosts(),
    Idle(),
    ClientImport(),
    ServerImport(),
    Scaling(),
    Together(),
)

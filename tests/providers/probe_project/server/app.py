"""The probe's application, taken from EnvTorch's sources: this project does not install EnvTorch."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

source = Path(__file__).parents[4] / "src/envtorch/testing/probe_server.py"
spec = spec_from_file_location("probe_server", source)
assert spec is not None
assert spec.loader is not None
module = module_from_spec(spec)
spec.loader.exec_module(module)
app = module.app

"""A fleet's manifests as text: one stream for `kubectl`, or the files of a kustomize base."""

from envtorch.providers.fleet_manifests import adapter_values, fleet_manifests, grade_note
from envtorch.providers.fleet_options import MARGIN_S, PRE_STOP_S, FleetOptions
from envtorch.providers.manifest_text import manifest_text, manifests_text

__all__ = ["ADAPTER_FILE", "fleet_base", "fleet_stream"]

ADAPTER_FILE = "prometheus-adapter-values.yaml"


def fleet_stream(options: FleetOptions) -> str:
    """All manifests as one text for `kubectl apply -f -`; what there is to know about them is in comments."""
    notes = [*grade_note(options), _ending_note(options)]
    if options.max_replicas is not None:
        rule = manifest_text(adapter_values(options)).splitlines()
        notes += ["", "For the autoscaler, install prometheus-adapter with these values:", "", *rule]
    comments = "".join(f"# {line}".rstrip() + "\n" for line in notes)
    return comments + manifests_text(fleet_manifests(options))


def fleet_base(options: FleetOptions) -> dict[str, str]:
    """The files of a kustomize base, by name: a manifest each, and a README."""
    files = {
        f"{manifest['kind'].lower()}.yaml": manifest_text(manifest) for manifest in fleet_manifests(options)
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    files["kustomization.yaml"] = manifest_text(kustomization)
    if options.max_replicas is not None:
        files[ADAPTER_FILE] = manifest_text(adapter_values(options))
    return {**files, "README.md": _readme(options)}


def _ending_note(options: FleetOptions) -> str:
    return (
        f"A pod that is told to end has {options.grace_s} s: {PRE_STOP_S} until name servers know,"
        f" {options.finish_s} for open sessions, {options.drain_s} for running calls, {MARGIN_S} to spare."
    )


def _readme(options: FleetOptions) -> str:
    sections = [
        f"# {options.name}",
        MADE.format(image=options.image),
        "## Addresses\n\n" + _addresses(options),
        "## The sandbox\n\n" + "\n".join(grade_note(options)),
        "## Updates and evictions\n\n" + _ending_note(options) + "\n" + ENDING,
    ]
    if options.token_secret is not None:
        sections.append(LOCKED.format(secret=options.token_secret))
    if options.max_replicas is not None:
        sections.append(AUTOSCALING.format(file=ADAPTER_FILE))
    return "\n\n".join(sections) + "\n"


def _addresses(options: FleetOptions) -> str:
    suffix = f".{options.namespace}" if options.namespace is not None else ""
    service = f"{options.name}{suffix}"
    if options.kind == "deployment":
        return ANY_REPLICA.format(url=f"http://{service}:{options.port}")
    return EACH_REPLICA.format(url=f"http://{options.name}-N.{service}:{options.port}")


MADE = """\
Servers of `{image}`, made by `envtorch k8s render`. Apply them with `kubectl apply -k DIR`, or name DIR in
the `resources` of an overlay."""

LOCKED = """\
## The token

Callers show the key `token` of the Secret `{secret}`, which is not part of this base. Prometheus needs it,
too, to read `/metrics`."""

AUTOSCALING = """\
## Autoscaling

`{file}` are values for the Helm chart of prometheus-adapter; Prometheus itself scrapes pods by their
`prometheus.io` annotations. They are not part of the base."""

ENDING = """\
Meanwhile it opens no session and begins no episode: clients get `Draining`, and pools and rollouts play that
episode elsewhere. Sessions with `recover="replay"` move at their next call. What is left is `SessionLost`."""

ANY_REPLICA = """\
`{url}` is one of the replicas, chosen when a client connects. A client that loses its connection may reach
another one: use a StatefulSet, or a proxy (`envtorch proxy-config`), where sessions have to survive that."""

EACH_REPLICA = """\
Each replica has an address that stays: `{url}`, with N from 0 on. Give clients one of them, and the others as
`elsewhere`. `envtorch proxy-config` makes one address out of them."""

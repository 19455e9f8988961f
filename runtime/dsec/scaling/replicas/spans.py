"""How long a new replica takes to its first sample, part by part (ELAS-25, ELAS-26, CONF-31). Pure.

The default model gives 40 s from the trigger to the first sample with image and parameters warm,
as source 004 measured; what is cold adds its bytes over its bandwidth.
"""

from dataclasses import dataclass, fields

MB = 10**6


@dataclass(frozen=True, slots=True)
class Spans:
    """Seconds of each part; the field names are the stages."""

    decide: float
    """Trigger confirmed to count raised."""
    bind: float
    image: float
    create: float
    register: float
    parameters: float
    join: float
    """Into the sampling pool."""
    sample: float
    """The first one."""

    @property
    def total(self) -> float:
        """Trigger to first sample."""
        return float(sum(getattr(self, one.name) for one in fields(self)))


@dataclass(frozen=True, slots=True)
class SpanModel:
    """Where spans come from. Bandwidths are of one node, in bytes a second."""

    decide: float = 0.5
    bind: float = 0.5
    image_warm: float = 2.0
    create: float = 0.5
    register: float = 1.0
    parameters_warm: float = 0.08
    join: float = 0.42
    sample: float = 35.0
    image_bandwidth: float = 100.0 * MB
    parameter_bandwidth: float = 500.0 * MB

    def spans(
        self,
        *,
        image_bytes: int = 2000 * MB,
        parameter_bytes: int = 500 * MB,
        image_warm: bool = True,
        parameters_warm: bool = True,
    ) -> Spans:
        """Return the spans of one new replica."""
        image = 0.0 if image_warm else image_bytes / self.image_bandwidth
        parameters = 0.0 if parameters_warm else parameter_bytes / self.parameter_bandwidth
        return Spans(
            decide=self.decide,
            bind=self.bind,
            image=self.image_warm + image,
            create=self.create,
            register=self.register,
            parameters=self.parameters_warm + parameters,
            join=self.join,
            sample=self.sample,
        )


DEFAULT_SPANS = SpanModel()

"""``FusedActivation``: a function that an operator applies to its result."""

from __future__ import annotations

from typing import Any

from tvmdml import operators
from tvmdml.directml.enums import OperatorType, member
from tvmdml.directml.errors import Refused
from tvmdml.operators._contract import Operator, Role


class FusedActivation:
    """A function that an operator applies to its result.

    Args:
        activation: an ``OperatorType`` of an activation; ``INVALID`` for none.
        param_1: its first attribute, if it has one.
        param_2: its second attribute, if it has two.

    Raises:
        TypeError: an argument is of the wrong kind.
    """

    __slots__ = ("activation", "parameters")

    def __init__(self, activation: Any, param_1: float = 0, param_2: float = 0) -> None:
        self.activation = member(OperatorType, activation, "FusedActivation activation")
        self.parameters = (float(param_1), float(param_2))

    def __repr__(self) -> str:
        return f"<dml.FusedActivation {self.activation.name} {self.parameters}>"

    def operator(self) -> Operator | None:
        """The activation as a part of another operator; ``None`` for none.

        Raises:
            Refused: the operator is no activation.
        """
        name = self.activation.name
        if self.activation is OperatorType.INVALID:
            return None
        if not name.startswith("ACTIVATION_"):
            raise Refused(f"FusedActivation: {name} is not fused into operators. E_INVALIDARG (0x80070057)")
        cls: Any = operators.public_name("".join(word.capitalize() for word in name.split("_")))
        names = [field.name for field in cls.fields() if field.role is Role.FLOAT]
        return cls.fused(**dict(zip(names, self.parameters, strict=False)))

    @staticmethod
    def none() -> FusedActivation:
        """No function."""
        return FusedActivation(OperatorType.INVALID)


_FACTORIES: dict[str, dict[str, float | None]] = {
    "elu": {"alpha": 1.0},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "identity": {},
    "leaky_relu": {"alpha": 0.01},
    "linear": {"alpha": None, "beta": None},
    "parametric_softplus": {"alpha": None, "beta": None},
    "relu": {},
    "scaled_elu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "scaled_tanh": {"alpha": 1.0, "beta": 0.5},
    "sigmoid": {},
    "softplus": {"steepness": 1.0},
    "softsign": {},
    "tanh": {},
    "thresholded_relu": {"alpha": 1.0},
    "shrink": {"bias": 0.0, "threshold": 0.5},
    "celu": {"alpha": 1.0},
    "gelu": {},
}
"""The static methods, with their parameters' defaults; ``None`` for a parameter that must be given."""


def _factory(name: str, defaults: dict[str, float | None]) -> Any:
    parameters = ", ".join(f"{one}: float" + ("" if default is None else f" = {default!r}") for one, default in defaults.items())
    kind = f"OperatorType.ACTIVATION_{name.upper()}"
    source = f"def {name}({parameters}) -> FusedActivation:\n    return FusedActivation({', '.join([kind, *defaults])})\n"
    names: dict[str, Any] = {"OperatorType": OperatorType, "FusedActivation": FusedActivation, "__name__": __name__}
    exec(source, names)  # noqa: S102 - of the table above
    found = names[name]
    found.__qualname__ = f"FusedActivation.{name}"
    found.__doc__ = f"``ACTIVATION_{name.upper()}``."
    return found


for _name, _defaults in _FACTORIES.items():
    setattr(FusedActivation, _name, staticmethod(_factory(_name, _defaults)))

"""A package with a policy, a predictor, a source and a command, as an installer leaves it in a folder of packages."""

from pathlib import Path

MODULE = '''"""Jobs of the patient."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from slackwater.flows.command import Answer, Output, option
from slackwater.forecasting.predictor import ByVariable
from slackwater.forecasting.predictors.last_value import last_value
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import NameForm
from slackwater.warehouse.sources.files.tabular import Tabular


@dataclass(frozen=True, kw_only=True)
class Patient(OnDemandOnly):
    """OnDemandOnly with a parameter in its name."""

    patience: float = 0.5
    name: str = field(init=False)
    name_form: ClassVar = NameForm(optional={"patience": float})

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"Patient({self.patience:g})")


def held():
    """Last value under a name of its own."""
    own = last_value()
    return ByVariable(name="held", price=own.price, count=own.count, pooled=False)


def ridge():
    """Ridge regression of scikit-learn."""
    from sklearn.linear_model import Ridge

    from slackwater.forecasting.adapters import from_sklearn

    return from_sklearn(Ridge(), name="ridge")


class Table(Tabular):
    """The tidy files under another name."""

    name = "ledger"


def patience(*, hours: Annotated[float, option("Hours to wait.")] = 2.0, output: Output = Output()) -> Answer:
    """Print how long to wait."""
    return Answer(title="Patience", value={"hours": hours}, about=f"wait {hours} hours")
'''
ENTRY_POINTS = """
[slackwater.policies]
Patient = patient_jobs:Patient
[slackwater.predictors]
held = patient_jobs:held
ridge = patient_jobs:ridge
[slackwater.sources]
ledger = patient_jobs:Table
[slackwater.commands]
patience = patient_jobs:patience
plan = patient_jobs:patience
green jobs = patient_jobs:patience
"""


def install(folder: Path) -> Path:
    """Write the package with its entry points into a folder of packages; return the folder."""
    info = folder / "patient_jobs-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "patient_jobs.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patient_jobs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder

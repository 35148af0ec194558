"""The chart types of the experiments are valid Vega-Lite."""

import pytest
from page_kit import accept

from slackwater.flows.show.charts import Axis
from slackwater.studies.experiments import charts

AXIS = Axis(title="x", low=0.0, high=3.0)
SPECS = {
    "heat": charts.heat(
        [{"x": 1, "y": "a", "z": z} for z in (1.0, -0.5, float("nan"))], x=AXIS, y=AXIS, value="gain"
    ),
    "area": charts.area([{"x": k, "y": 2.0 * k} for k in range(4)], x=AXIS, y=AXIS),
}


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_of_chart_is_what_the_language_takes(kind):
    accept(SPECS[kind])

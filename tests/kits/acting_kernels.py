"""Load the compiled simulator on import, so that no process that is forked afterwards has to.

Only the process from which `acting_process` forks imports it: it would take seconds of the collection of all tests.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from acting_kit import MARKET, make_jobs

from slackwater.flows.acting.contract import Order
from slackwater.flows.acting.drivers.simulated import SimulatedDriver

(JOB,) = make_jobs(1, within_hours=0, hours=4, seed=1)
with TemporaryDirectory() as folder:
    cloud = SimulatedDriver(Path(folder), lambda name, now: JOB.world)
    cloud.bring(Order(job=JOB.name, token="t", key="k", market=MARKET, on_demand=1, spot=2), JOB.start)
    cloud.listed(JOB.name, [], JOB.deadline)

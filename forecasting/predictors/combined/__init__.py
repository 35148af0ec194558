"""The predictors that weigh others by what was right of late: `combined`, the default, and `smoothing` (M6.2)."""

from __future__ import annotations

from forecasting.predictor import ByVariable
from forecasting.predictors.combined.count import StackedCount
from forecasting.predictors.combined.price import AdaptiveLastValue, CombinedPrice

#: The members of `smoothing`: what is, and what was seen of late.
_SMOOTHED = (
    "stay", "recent_half_hour", "recent_90_minutes", "recent_4_hours", "recent_12_hours", "recent_2_days",
)  # fmt: skip


def combined() -> ByVariable:
    """Every model's law weighted by recent accuracy per market and step."""
    return ByVariable(name="combined", pooled=True, price=CombinedPrice(), count=StackedCount())


def smoothing() -> ByVariable:
    """Exponential smoothing: of a count's distribution, and of the size of a price's changes."""
    return ByVariable(
        name="smoothing", pooled=True, price=AdaptiveLastValue(), count=StackedCount(members=_SMOOTHED)
    )


def uncalibrated() -> ByVariable:
    """`combined` before past values correct its intervals: shown beside it, never used (M6.6)."""
    return ByVariable(
        name="uncalibrated",
        pooled=True,
        price=CombinedPrice(recalibrated=False),
        count=StackedCount(recalibrated=False),
    )

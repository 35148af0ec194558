"""Units that the headings of columns state: a price per month, in cents or of a GPU is no price of an instance-hour (M1.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from slackwater.warehouse.documents import read_data
from slackwater.warehouse.sources.unread import is_other_currency, plain_name

_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\sA-Za-z\d_.,:;()\[\]-]")
#: Words by meaning: times, GPUs, cores, instances, shares, sums; `short` are times only after "per".
_DATA: Final = read_data(__package__, "headings")
_HOUR, _GPU, _CORE, _INSTANCE, _SHARE, _SUM = (
    frozenset(_DATA[name]) for name in ("hour", "gpu", "core", "instance", "share", "sum")
)
_TIMES: Final[Mapping[str, Sequence[str]]] = _DATA["times"]
_SHORT: Final[Mapping[str, str]] = _DATA["short"]
_USE: Final = re.compile(
    r"(lineitem|product|resource)?(usage(amount|quantity|hours)?|(consumed|billed|pricing)?quantity|(running|used|billed)hours|runtimehours)"
)
#: Zones by their abbreviations, as headings name them.
_ZONES: Final = re.compile(
    r"local(time)?|cet|cest|eet|eest|wet|west|msk|bst|ist|jst|kst|hkt|sgt|ae[sd]t|[pmce][sd]t|pt|et"
)
PER_GPU: Final = "per GPU"


def _words_of(heading: str) -> list[str]:
    found = [word.lower() for word in _WORDS.findall(heading)]
    return ["per" if word in ("/", "p") else word for word in found if word != "$"]


def _after_per(words: Sequence[str]) -> set[str]:
    return {word for before, word in pairwise(words) if before == "per"}


def time_of(heading: str) -> str:
    """Return the time other than an hour that a heading names, "" if none.

    >>> time_of("usd_per_month"), time_of("SpotPricePerHour"), time_of("price_min"), time_of("$/s"), time_of("usd_per_1000h")
    ('month', '', '', 'second', '1000 hours')
    """
    words = _words_of(heading)
    per = _after_per(words)
    if many := next((word for word in per if word.isdecimal() and word != "1"), ""):
        return f"{many} hours" if _HOUR & set(words) else many
    if short := next((_SHORT[word] for word in words if word in _SHORT and word in per), ""):
        return short
    if _HOUR & set(words):
        return ""
    return next((name for name, texts in _TIMES.items() if set(texts) & set(words)), "")


def price_unit(heading: str) -> str:
    """Return the unit that a heading of a price states, if it is not an instance-hour; "" otherwise.

    >>> price_unit("price_per_gpu_hour"), price_unit("gpu_instance_price"), price_unit("monthly cost"), price_unit("$/vCPU-h")
    ('per GPU', '', 'per month', 'per core')
    """
    if time := time_of(heading):
        return f"per {time}"
    words = _words_of(heading)
    per_thing = _after_per(words) | {word for word, after in pairwise(words) if after in _HOUR}
    counted = per_thing if _INSTANCE & set(words) else {*words}
    return PER_GPU if counted & _GPU else "per core" if counted & _CORE else ""


def currency_of(heading: str) -> str:
    """Return the currency other than US dollars, or the part of a dollar or price, that a heading names, "" if none.

    >>> currency_of("price_eur"), currency_of("Spot price (€)"), currency_of("usd_cents"), currency_of("spot_usd")
    ('eur', '€', 'cents', '')
    >>> currency_of("spot_discount"), currency_of("discounted price")
    ('discount', '')
    """
    found = (word for word in _words_of(heading) if word in "%‰" or word in _SHARE or is_other_currency(word))
    return next(found, "")


def counts_gpus(heading: str) -> bool:
    """Return whether a heading of counts names GPUs and not instances.

    >>> counts_gpus("free_gpus"), counts_gpus("gpu_instances"), counts_gpus("available")
    (True, False, False)
    """
    words = set(_words_of(heading))
    return bool(words & _GPU) and not words & (_INSTANCE | {f"{word}s" for word in _INSTANCE})


def usage_column(price: str, headings: Iterable[str]) -> str:
    """Return the heading of the amount of use that a cost is for, "" if the price is no cost or there is none.

    >>> usage_column("lineItem/UnblendedCost", ["lineItem/UsageAmount"]), usage_column("rate", ["UsageAmount"])
    ('lineItem/UsageAmount', '')
    """
    words = set(_words_of(price))
    if not _SUM & words or _HOUR & words:
        return ""
    return next((heading for heading in headings if _USE.fullmatch(plain_name(heading))), "")


def zone_of(heading: str) -> str:
    """Return the zone other than UTC that a heading of times names, "" if none.

    >>> zone_of("Timestamp (PST)"), zone_of("local_time"), zone_of("time_utc"), zone_of("latest_time")
    ('pst', 'local', '', '')
    """
    return next((word for word in _words_of(heading) if _ZONES.fullmatch(word)), "")

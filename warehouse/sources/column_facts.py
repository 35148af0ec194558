"""Units, currencies, zones and purchase options of a table, from the headings and values of its columns (M1.2) (ours).

Tables have many names for these facts. A price per month, in cents or of a GPU is not a price of an instance-hour, and a
row with "1yr reserved" in any column is not a spot price.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from unicodedata import category

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.warehouse.amounts import is_number
from slackwater.warehouse.catalogue import gpus_of, named_gpus, product_rank
from slackwater.warehouse.columns import PATTERNS
from slackwater.warehouse.documents import read_data

# ---
# Values of columns that no field reads. Such a column is recognised by its values: a column with "spot" and
# "1yr reserved" is the purchase option (field `mode`), whatever its name.

#: Maximum number of distinct values of such a column.
MOST_VALUES: Final = 64
#: Texts for a missing value.
_MISSING: Final = frozenset(("", "-", "--", "n/a", "na", "none", "null", "nan", "unknown", "?"))
_FLAGS: Final = {"true": True, "yes": True, "t": True, "y": True, "1": True, "1.0": True,
                 "false": False, "no": False, "f": False, "n": False, "0": False, "0.0": False}  # fmt: skip
#: Names of columns that are true for rows that are not sold as spot.
_NOT_SPOT_COLUMN: Final = re.compile(
    r"(is)?(ondemand|reserved|reservation|dedicated|committed|commitment|devtest|payasyougo|payg)(only)?"
)
#: Names of columns with the zone of times that state none.
ZONE_COLUMNS: Final = frozenset(
    ("tz", "timezone", "timezoneid", "utcoffset", "tzoffset", "timezoneoffset", "tzname")
)
#: A time without a zone.
_NO_ZONE: Final = r"^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?\s*$"
_UTC: Final = re.compile(r"(?i)(etc/)?(utc|gmt|zulu|z)|(utc|gmt)?[+-]?0+(:?00)?(\.0)?")
#: Names of columns with the unit of the price, if their values are times such as "month".
_UNIT_COLUMN: Final = re.compile(
    r"(price|pricing|rate|cost|bill|billing|charge|charged|rental|usage)?(per|period|basis|cycle|unit|time|timeunit|frequency)"
    r"|priced|billing|uom"
)
_TIME: Final = r"(hours?|hrs?|h|months?|mo|days?|weeks?|years?|yr|minutes?|mins?|seconds?|secs?|s)"
_RESOURCE: Final = (
    r"(gpus?|vcpus?|cpus?|cores?|cards?|accelerators?|chips?|instances?|vms?|machines?|nodes?|servers?)"
)
#: Units of prices in a column of any name, and in a column whose name fits `_UNIT_COLUMN`.
_UNIT: Final = re.compile(
    rf"(?i)([a-z]{{0,5}}[ _$€£¢]*(per|/)[ _]*)({_RESOURCE}[ _/-]*(per )?)?(\d* ?{_TIME})?|{_RESOURCE}[ _/-]*(per )?{_TIME}"
)
_BARE_UNIT: Final = re.compile(rf"(?i)\d* ?{_TIME}|{_RESOURCE}|(hour|dai|month|week|year|annual)(ly)?")
_PURCHASE_OPTION: Final = re.compile(
    r"(?i)(non[ _-]?spot|on[ _-]?demand|(un)?reserved|reservations?|savings?[ _-]?plans?|commit(ted|ment)?s?|commit\dyr"
    r"|dedicated([ _-]?hosts?)?|pay[ _-]?as[ _-]?you[ _-]?go|payg|flex[ _-]?start|dws|calendar|low[ _-]?prio(rity)?"
    r"|dev[ _/-]?test(consumption)?|capacity[ _-]?blocks?|prepaid|sole[ _-]?tenan(t|cy)|(\d|one|three)[ _-]?(yr|years?)([ _-].*)?)"
    r"([ _-]?(vms?|instances?|price|use|mode|\dyr))*"
    r"|([A-Z0-9]{2,5}-)?(Box|DedicatedBox|Dedicated|Host|HostBox|UnusedBox|UnusedDed|ReservedHost)Usage(:.*)?"  # of AWS bills
)
_OPERATING_SYSTEM: Final = re.compile(
    r"(?i)(gnu[/ ]?)?(linux|unix|windows|ms ?win|win(\b|[ _-]?\d)|rhel|red ?hat|suse|sles|ubuntu|debian|centos|rocky"
    r"|alma ?linux|amazon linux|mac ?os).*"
)
_CURRENCY: Final = re.compile(
    rf"(?i){PATTERNS['US_DOLLAR']}|euros?|[€£¥₹¢]|cents?|rmb|aed|aud|brl|cad|chf|clp|cny|cop|czk|dkk|eur|gbp|hkd|huf|idr|ils"
    "|inr|jpy|krw|mxn|myr|nok|nzd|php|pln|ron|rub|sar|sek|sgd|thb|try|twd|uah|vnd|zar"
)
_SPOT_VALUES: Final = {
    column: re.compile(f"(?i){PATTERNS[name]}")
    for column, name in (("mode", "SPOT"), ("currency", "US_DOLLAR"), ("unit", "INSTANCE_HOUR"))
}


#: Endings of names that state the purchase option or the operating system, as in price lists of Azure: "ND96isr H100 v5 Spot".
_NAME_ENDINGS: Final = {
    "mode": re.compile(r"(?i)[ _-]+(spot|preemptible)$"),
    "product": re.compile(r"(?i)[ _-]+windows$"),
}
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


def plain_name(text: str) -> str:
    """Return a column name in lower case with letters and digits, and signs of currencies other than $ and of percent.

    >>> plain_name("AvailabilityZone"), plain_name("availability_zone "), plain_name("$/hr"), plain_name("Spot price (€)")
    ('availabilityzone', 'availabilityzone', 'hr', 'spotprice€')
    """
    return "".join(
        c for c in text.lower() if c in _LETTERS or c in "%‰" or (c != "$" and category(c) == "Sc")
    )


def is_flag(values: Iterable[str]) -> bool:
    """Return whether texts are truth values; texts that are all 1 are numbers.

    >>> is_flag(["true", "False"]), is_flag(["0", "1"]), is_flag(["1"]), is_flag(["3.06", "0"])
    (True, True, False, False)
    """
    found = {value.strip().lower() for value in values} - _MISSING
    return bool(found) and found <= set(_FLAGS) and not found <= {"1", "1.0"}


def non_spot_values(plain: str, values: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return the field that an unread column states, and its values that do not fit a spot price, with the texts to store.

    ``plain`` is the name of the column (`plain_name`). Returns ("", {}) for a column that states no field.

    >>> non_spot_values("tier", ["spot", "standard"]), non_spot_values("x", ["USD", "EUR"])
    (('mode', {'standard': 'standard'}), ('currency', {'EUR': 'EUR'}))
    >>> non_spot_values("system", ["Linux", "RHEL8"]), non_spot_values("model", ["gpu", "L4"])
    (('product', {'RHEL8': 'RHEL8'}), ('', {}))
    >>> non_spot_values("sku", ["ND96 v5 Spot", "ND96 v5", "ND96 v5 Low Priority"])[1].keys()
    dict_keys(['ND96 v5', 'ND96 v5 Low Priority'])
    >>> non_spot_values("reserved", ["true", "false"]), non_spot_values("basis", ["hour", "month"])
    (('mode', {'true': 'reserved true'}), ('unit', {'month': 'month'}))
    """
    found = {value: value.strip() for value in values if value.strip().lower() not in _MISSING}
    words = list(found.values())
    if not words or len(words) > MOST_VALUES:
        return "", {}
    if _NOT_SPOT_COLUMN.fullmatch(plain) and is_flag(words):
        return "mode", {value: f"{plain} {word}" for value, word in found.items() if _FLAGS[word.lower()]}
    column = _fact_of(plain, words)
    return column, {
        value: word for value, word in found.items() if column and not _is_spot_value(column, word)
    }


def _fact_of(plain: str, words: Collection[str]) -> str:
    """Return the field that the values of a column state, "" if none."""
    if any(map(_SPOT_VALUES["mode"].fullmatch, words)) or all(map(_PURCHASE_OPTION.fullmatch, words)):
        return "mode"
    if all(map(_OPERATING_SYSTEM.fullmatch, words)):
        return "product"
    if ended := next((column for column in _NAME_ENDINGS if _has_ending(column, words)), ""):
        return ended
    if all(map(_CURRENCY.fullmatch, words)):
        return "currency"
    units = list(map(_UNIT.fullmatch, words))
    if (any(units) or _UNIT_COLUMN.fullmatch(plain)) and all(
        map(any, zip(units, map(_BARE_UNIT.fullmatch, words), strict=True))
    ):
        return "unit"
    return ""


def _has_ending(column: str, words: Collection[str]) -> bool:
    """Return whether a name has the ending of a field, and another name with the same beginning lacks it."""
    ending = _NAME_ENDINGS[column]
    beginnings = {ending.sub("", word) for word in words if ending.search(word)}
    return any(word.startswith(tuple(beginnings)) for word in words if not ending.search(word))


def _is_spot_value(column: str, word: str) -> bool:
    """Return whether a value of a field fits a Linux spot price in USD per instance-hour."""
    if column == "product":
        return product_rank(word) is not None
    if column == "mode" and _NAME_ENDINGS["mode"].search(word):
        return True
    return _SPOT_VALUES[column].fullmatch(word) is not None


def is_other_currency(word: str) -> bool:
    """Return whether a word is a currency other than US dollars, or a part of a dollar.

    >>> is_other_currency("EUR"), is_other_currency("cents"), is_other_currency("USD"), is_other_currency("spot")
    (True, True, False, False)
    """
    return _CURRENCY.fullmatch(word) is not None and not _is_spot_value("currency", word)


def non_spot_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return field -> text of the unread columns of a row (plain name -> text) that do not fit a spot price.

    >>> non_spot_fields({"offertype": "On-Demand", "gpu": "H100"})
    {'mode': 'On-Demand'}
    """
    found: dict[str, str] = {}
    for plain, text in fields.items():
        column, other = non_spot_values(plain, [text])
        if text in other:
            found.setdefault(column, other[text])
    return found


def non_spot_columns(table: Mapping[str, Any], read: Collection[str]) -> dict[str, pa.Array]:
    """Return field -> its text in each row, null where it fits a spot price, from the columns that are not ``read``."""
    found: dict[str, pa.Array] = {}
    for name, column in table.items():
        if name in read:
            continue
        field, other = non_spot_values(plain_name(name), distinct_texts(column))
        if other:
            texts = [other.get(text or "") for text in column.cast(pa.string()).to_pylist()]
            stated = pa.array(texts, pa.string())
            found[field] = pc.coalesce(found[field], stated) if field in found else stated
    return found


def ending_columns(names: pa.Array) -> dict[str, pa.Array]:
    """Return column of ours -> its text in each row, null for rows of a spot price, by the endings of names of instance types."""
    words = {text.strip() for text in pc.unique(names).cast(pa.string()).to_pylist() if text}
    found = {}
    for ours in _NAME_ENDINGS:
        other = (
            {word for word in words if not _is_spot_value(ours, word)} if _has_ending(ours, words) else set()
        )
        if other:
            texts = [(text or "").strip() for text in names.cast(pa.string()).to_pylist()]
            found[ours] = pa.array([text if text in other else None for text in texts], pa.string())
    return found


def distinct_texts(column: pa.Array) -> list[str]:
    """Return the distinct values of a column of texts or truth values; empty for other types and for more than `MOST_VALUES`."""
    if not is_text_type(column.type) or len(values := pc.unique(column)) > MOST_VALUES:
        return []
    return [text for text in values.cast(pa.string()).to_pylist() if text is not None]


def is_text_type(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts or truth values."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean))


def non_utc_zones(table: Mapping[str, Any], times: pa.Array, heading_zone: str = "") -> list[str | None]:
    """Return the zone of each time that states none, from another column or the heading of the times; None for UTC."""
    name = next((name for name in table if plain_name(name) in ZONE_COLUMNS), None)
    typed = not is_text_type(times.type)
    if (name is None and not heading_zone) or (
        typed and not (pa.types.is_timestamp(times.type) and times.type.tz is None)
    ):
        return [None] * len(times)
    is_open = times.is_valid() if typed else pc.match_substring_regex(times.cast(pa.string()), _NO_ZONE)
    named = [heading_zone] * len(times) if name is None else table[name].to_pylist()
    zones = ["" if zone is None else str(zone) for zone in named]
    return [
        zone if lacks_zone and not is_utc(zone) else None
        for lacks_zone, zone in zip(is_open.to_pylist(), zones, strict=True)
    ]


def non_utc_zone(fields: Mapping[str, str], time: str) -> str:
    """Return the zone that another field of a row (plain name -> text) names for a time that states none, "" for UTC.

    >>> non_utc_zone({"tz": "Asia/Tokyo"}, "2026-03-05 08:00"), non_utc_zone({"tz": "Asia/Tokyo"}, "2026-03-05T08:00Z")
    ('Asia/Tokyo', '')
    """
    zone = next((text for name, text in fields.items() if name in ZONE_COLUMNS), "")
    return zone if re.match(_NO_ZONE, time) and not is_utc(zone) else ""


def counts_by_name(heading: str) -> bool:
    """Return whether a column that is not read counts by its name, also with numbers: a zone, an amount of use, a flag.

    >>> counts_by_name("utc_offset"), counts_by_name("line_item_usage_amount"), counts_by_name("reserved"), counts_by_name("vcpus")
    (True, True, True, False)
    """
    plain = plain_name(heading)
    return plain in ZONE_COLUMNS or bool(_USAGE.fullmatch(plain) or _NOT_SPOT_COLUMN.fullmatch(plain))


def is_utc(zone: str) -> bool:
    """Return whether a text names UTC.

    >>> [is_utc(zone) for zone in ("UTC", "+00:00", "0", "Etc/UTC", "", "Europe/Berlin", "+05:30", "-05:00", "+10:00")]
    [True, True, True, True, True, False, False, False, False]
    """
    return zone.strip().lower() in _MISSING or _UTC.fullmatch(zone.strip()) is not None


# ---
# Words of headings: units of prices and counts, currencies and zones.

_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\sA-Za-z\d_.,:;()\[\]-]")
#: Words by meaning: times, GPUs, cores, instances, shares, costs; the words of `short` are times only after "per".
_DATA: Final = read_data(__package__, "headings")
_HOUR, _GPU, _CORE, _INSTANCE, _SHARE, _COST = (
    frozenset(_DATA[name]) for name in ("hour", "gpu", "core", "instance", "share", "sum")
)
_TIMES: Final[Mapping[str, Sequence[str]]] = _DATA["times"]
_SHORT: Final[Mapping[str, str]] = _DATA["short"]
_USAGE: Final = re.compile(
    r"(lineitem|product|resource)?(usage(amount|quantity|hours)?|(consumed|billed|pricing)?quantity|(running|used|billed)hours|runtimehours)"
)
#: Abbreviations of zones in headings.
_ZONE_WORDS: Final = re.compile(
    r"local(time)?|eastern|central|mountain|pacific|beijing|cet|cest|eet|eest|wet|west|msk|bst|ist|jst|kst|hkt|sgt|ae[sd]t|[pmce][sd]t|pt|et"
)
#: Places and offsets of zones in headings.
_NAMED_ZONE: Final = re.compile(
    r"(?i)(?<![a-z])(africa|america|antarctica|asia|atlantic|australia|etc|europe|indian|pacific|us)/[a-z_]+(/[a-z_]+)?"
    r"|(?<![a-z])(utc|gmt) ?[+-] ?\d{1,2}(:?\d{2})?|[+-]\d{2}:\d{2}"
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
    if number := next((word for word in per if word.isdecimal() and word != "1"), ""):
        return f"{number} hours" if _HOUR & set(words) else number
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
    """Return the currency other than US dollars, or the part of a dollar or of a price, that a heading names, "" if none.

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


def gpus_in(instance_type: str, stated: str) -> float | None:
    """Return the GPUs of an instance: stated, else of the catalogue, else of its name; None if unknown or not one number.

    >>> gpus_in("8xH100", ""), gpus_in("p4d.24xlarge", ""), gpus_in("box", "2"), gpus_in("box", "")
    (8, 8, 2.0, None)
    """
    if is_number(stated):
        return float(stated)
    listed = gpus_of(instance_type)
    return min(listed) if len(listed) == 1 else named_gpus(instance_type)


def usage_column(price: str, headings: Iterable[str]) -> str:
    """Return the heading of the usage that a cost is for, "" if the price is not a cost or no heading fits.

    >>> usage_column("lineItem/UnblendedCost", ["lineItem/UsageAmount"]), usage_column("rate", ["UsageAmount"])
    ('lineItem/UsageAmount', '')
    """
    words = set(_words_of(price))
    if not _COST & words or _HOUR & words:
        return ""
    return next((heading for heading in headings if _USAGE.fullmatch(plain_name(heading))), "")


def zone_of(heading: str) -> str:
    """Return the zone other than UTC that a heading of times names, "" if none.

    >>> zone_of("Timestamp (PST)"), zone_of("local_time"), zone_of("time_utc"), zone_of("latest_time")
    ('pst', 'local', '', '')
    >>> zone_of("time (UTC+8)"), zone_of("time (Asia/Tokyo)"), zone_of("lineItem/UsageStartDate"), zone_of("time_utc+00:00")
    ('UTC+8', 'Asia/Tokyo', '', '')
    """
    named = _NAMED_ZONE.search(heading)
    if named is not None:
        return "" if is_utc(named[0]) else named[0]
    return next((word for word in _words_of(heading) if _ZONE_WORDS.fullmatch(word)), "")


# ---
# Numbers with a stated decimal separator: 8,52 and 1.234,5 (decimal comma), 8.52 and 1,234.5 (decimal point).

#: Decimal separator -> characters that may separate thousands, for a regular expression.
_THOUSANDS: Final = {",": ".'\u2019 \u00a0\u202f", ".": ",'\u2019 \u00a0\u202f"}


def with_points(texts: pa.Array, decimal: str) -> tuple[pa.Array, pa.Array]:
    """Return numbers with a decimal point and no thousands separator, and whether each text has digits but is not such a number.

    Texts that are not such numbers stay as they are.

    >>> numbers, bad = with_points(pa.array(["8,52", "1.234,5", "1.852", "1.85", "n/a"]), ",")
    >>> numbers.to_pylist(), bad.to_pylist()
    (['8.52', '1234.5', '1852', '1.85', 'n/a'], [False, False, False, True, False])
    >>> with_points(pa.array(["1,234.50", "1,85"]), ".")[0].to_pylist()
    ['1234.50', '1,85']
    """
    group = f"[{_THOUSANDS[decimal]}]"
    number = rf"^\s*[+-]?([0-9]+|[0-9]{{1,3}}({group}[0-9]{{3}})+)?([{decimal}][0-9]*)?([eE][+-]?[0-9]+)?\s*$"
    is_number = pc.match_substring_regex(texts, number)
    plain = pc.replace_substring_regex(texts, group, "")
    plain = pc.replace_substring(plain, decimal, ".")
    bad = pc.and_not(pc.match_substring_regex(texts, "[0-9]"), is_number)
    return pc.if_else(is_number, plain, texts), pc.fill_null(bad, False)

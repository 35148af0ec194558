-- Every series of some markets, after series_versions.sql.
-- latest_us: newest observation at or before the market's last slot. single: one distinct value, never repeated within $repeat_us.
SELECT place, sid, source, kind, product,
    min(at_us) AS first_us,
    max(at_us) FILTER (WHERE at_us <= last_us) AS latest_us,
    min(value) = max(value) AND coalesce(min(gap_us) > $repeat_us, TRUE) AS single,
    max(value) AS highest,
    arg_max(value, at_us) FILTER (WHERE at_us <= last_us) AS newest,
    arg_max(on_demand_usd, at_us) FILTER (WHERE on_demand_usd IS NOT NULL) AS on_demand_usd,
    max(capacity) AS capacity,
    count(capacity) = count(*) AS capacity_stated,
    coalesce(
        1000000 * arg_max(least(gap_seconds, 31622400), at_us) FILTER (WHERE gap_seconds IS NOT NULL),
        median(gap_us)
    ) AS nominal_us
FROM chosen JOIN spaced USING (sid) GROUP BY place, sid, source, kind, product ORDER BY place, kind, source, product

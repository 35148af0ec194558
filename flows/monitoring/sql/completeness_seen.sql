-- For some markets and every slot of a window: when the newest price and the newest count known by the slot's start were observed.
-- A row of (market, source, slot); times in microseconds since the epoch, null where nothing was known yet. The number of
-- observations does not matter to a read by slot: what became known is first folded to one running maximum per series.
WITH asked AS (SELECT unnest(CAST($market AS VARCHAR[])) AS market, unnest(CAST($source AS VARCHAR[])) AS source),
chosen AS (
    SELECT sid, concat_ws('/', provider, region, zone, instance_type) AS market, source, kind
    FROM series JOIN markets USING (mid) SEMI JOIN asked
    ON concat_ws('/', provider, region, zone, instance_type) = asked.market AND series.source = asked.source
),
rows AS (
    SELECT sid, epoch_us(known_at) AS known_us, epoch_us(max(observed_at)) AS at_us FROM price
    WHERE sid IN (SELECT sid FROM chosen) AND known_at <= $known_at GROUP BY sid, known_at
    UNION ALL
    SELECT sid, epoch_us(known_at), epoch_us(max(observed_at)) FROM availability
    WHERE sid IN (SELECT sid FROM chosen) AND known_at <= $known_at GROUP BY sid, known_at
),
running AS (
    SELECT market, source, kind, known_us,
        max(max(at_us)) OVER (PARTITION BY market, source, kind ORDER BY known_us) AS at_us
    FROM rows JOIN chosen USING (sid) GROUP BY market, source, kind, known_us
),
slots AS (
    SELECT market, source, kind, unnest(range($first_us, $last_us + 1, $step_us)) AS slot
    FROM asked CROSS JOIN (VALUES ('price'), ('availability')) AS kinds(kind)
),
newest AS (
    SELECT slots.market, slots.source, slots.kind, slot, at_us FROM slots ASOF LEFT JOIN running
    ON slots.market = running.market AND slots.source = running.source AND slots.kind = running.kind AND slot >= known_us
)
SELECT market, source, slot,
    max(at_us) FILTER (WHERE kind = 'price') AS price_us,
    max(at_us) FILTER (WHERE kind = 'availability') AS count_us
FROM newest GROUP BY market, source, slot ORDER BY market, source, slot

-- How long each series has now kept its value, beside how long it kept one before: stretches at the least or greatest value so far are
-- compared with such stretches only, and the others with the others, because a market stays at its floor or its capacity for long.
-- Newest known versions; times in microseconds. since_us and newest_us bound the present stretch, longest_us is the longest past one of its sort.
WITH versions AS (
    SELECT sid, observed_at, known_at, price_usd AS value FROM price
    WHERE sid IN (SELECT unnest(CAST($sid AS INTEGER[]))) AND known_at <= $known_at
    UNION ALL
    SELECT sid, observed_at, known_at, available FROM availability
    WHERE sid IN (SELECT unnest(CAST($sid AS INTEGER[]))) AND known_at <= $known_at
),
newest AS (
    SELECT sid, epoch_us(observed_at) AS at_us, arg_max(value, known_at) AS value FROM versions GROUP BY sid, observed_at
),
changes AS (
    SELECT sid, at_us, value FROM newest
    QUALIFY value IS DISTINCT FROM lag(value) OVER (PARTITION BY sid ORDER BY at_us)
),
ends AS (SELECT sid, max(at_us) AS newest_us FROM newest GROUP BY sid),
stretches AS (
    SELECT sid, at_us, value, lead(at_us) OVER so_far - at_us AS length_us,
        value = min(value) OVER so_far OR value = max(value) OVER so_far AS edge
    FROM changes
    WINDOW so_far AS (PARTITION BY sid ORDER BY at_us ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
present AS (SELECT sid, at_us, value, edge FROM stretches QUALIFY row_number() OVER (PARTITION BY sid ORDER BY at_us DESC) = 1)
SELECT present.sid, present.at_us AS since_us, newest_us, present.value, present.edge,
    count(stretches.at_us) AS stretches, coalesce(max(stretches.length_us), 0) AS longest_us
FROM present JOIN ends USING (sid)
LEFT JOIN stretches ON stretches.sid = present.sid AND stretches.at_us < present.at_us AND stretches.edge = present.edge
GROUP BY present.sid, present.at_us, newest_us, present.value, present.edge ORDER BY present.sid

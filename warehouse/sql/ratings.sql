-- The newest placement score and interruption band of some markets, as known at the time of each: a row of (place, kind, value, at_us).
-- Markets and times (known_us, microseconds since the epoch) are lists of one length; place tells which market a row is of.
-- A rating of a whole region is of all its zones, a rating of several instance types (joined by +) of each of them.
WITH asked AS (
    SELECT unnest($provider) AS provider, unnest($region) AS region, unnest($zone) AS zone, unnest($instance_type) AS instance_type,
        unnest($known_us) AS known_us, unnest(range(len($provider))) AS place
),
chosen AS (
    SELECT place, known_us, markets.zone = asked.zone AS is_own_zone, sid
    FROM asked JOIN markets USING (provider, region) JOIN series USING (mid)
    WHERE series.kind = 'availability' AND markets.zone IN (asked.zone, 'all')
        AND (markets.instance_type = asked.instance_type
            OR list_contains(string_split(markets.instance_type, '+'), asked.instance_type))
),
rated AS (
    SELECT sid, kind, available AS value, epoch_us(observed_at) AS at_us, epoch_us(greatest(observed_at, known_at)) AS since_us
    FROM availability WHERE kind IN ('score', 'band') AND sid IN (SELECT sid FROM chosen)
        AND (kind = 'score' AND available BETWEEN 1 AND 10 OR kind = 'band' AND available <= 4)
)
SELECT place, kind, value, at_us FROM rated JOIN chosen USING (sid)
WHERE since_us <= known_us AND at_us >= known_us - 3600000000 * if(kind = 'score', $score_hours, $band_hours)
QUALIFY row_number() OVER (PARTITION BY place, kind ORDER BY is_own_zone DESC, at_us DESC, since_us DESC, value) = 1

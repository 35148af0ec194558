-- When the first observation of a market was known, in microseconds since the epoch; of one source where $source is given.
-- A rating of the provider (kind 'score' or 'band') is no count of instances: it never answers as one.
WITH asked AS (
    SELECT sid FROM series JOIN markets USING (mid)
    WHERE provider = $provider AND region = $region AND zone = $zone AND instance_type = $instance_type
        AND ($source IS NULL OR source = $source)
)
SELECT min(epoch_us(greatest(observed_at, known_at))) FROM (
    SELECT observed_at, known_at FROM price SEMI JOIN asked USING (sid)
    UNION ALL
    SELECT observed_at, known_at FROM availability SEMI JOIN asked USING (sid) WHERE coalesce(kind, '') NOT IN ('score', 'band')
)

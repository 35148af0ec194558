-- Latest on-demand price of every price series of one instance type of a provider, from rows known at $known_at.
WITH chosen AS (
    SELECT sid, region, zone, source, product FROM series JOIN markets USING (mid)
    WHERE kind = 'price' AND provider = $provider AND instance_type = $instance_type
)
SELECT sid, region, zone, source, product,
    arg_max(on_demand_usd, row(observed_at, known_at)) AS on_demand_usd, epoch_us(max(observed_at)) AS at_us
FROM price JOIN chosen USING (sid)
WHERE on_demand_usd IS NOT NULL AND known_at <= $known_at
GROUP BY sid, region, zone, source, product

-- Rejected rows have the code of their reason, by which they are counted; empty if the source stated the reason as a sentence.
-- Rows stored before get the code from their sentence, once.
ALTER TABLE rejected ADD COLUMN code VARCHAR DEFAULT '';

UPDATE rejected SET code = coalesce(CASE
    WHEN reason IN ('no source', 'no provider', 'no region', 'no zone', 'no instance_type', 'no observed_at', 'no price_usd', 'no available')
        THEN substr(reason, 4) || '.missing'
    WHEN regexp_full_match(reason, 'contradicts line \d+ of the same market and time') THEN 'row.contradicts'
    WHEN starts_with(reason, 'conflicts with stored value ')
        THEN if(contains(raw, '"price_usd"'), 'row.conflicts.price_usd', 'row.conflicts.available')
    WHEN regexp_matches(reason, '^conflicts with stored (on_demand_usd|capacity|truncated) ')
        THEN 'row.conflicts.' || split_part(reason, ' ', 4)
    ELSE regexp_extract(reason, '^([a-z_]+) ', 1) || '.' || map {
        'contains / or @': 'separator', 'contains a character that cannot be printed': 'unprintable', 'is longer than': 'long',
        'is not a time': 'not_time', 'names no time zone': 'no_zone', 'is in the future': 'future', 'is outside': 'outside',
        'is before observed_at': 'early', 'is not a number': 'not_number', 'is not finite': 'not_finite', 'is negative': 'negative',
        'is a placeholder, not a price': 'placeholder', 'is no spot instance': 'not_spot',
        'is not per instance and hour': 'not_hourly', 'is not USD': 'not_usd', 'is after the time of the price': 'not_yet',
        'is not after the time of the price': 'no_longer', 'is none of': 'none_of', 'is not a positive number': 'not_positive',
        'is not a whole number': 'not_whole', 'is more than': 'too_many', 'is not within a second and a year': 'not_gap',
        'is above the capacity': 'above_capacity', 'is far above on-demand': 'far_above', 'is not true or false': 'not_flag'
    }[regexp_extract(reason, '^(?:source|provider|region|zone|instance_type|product|observed_at|known_at|price_usd|on_demand_usd|available|capacity|gap_seconds|kind|truncated|mode|unit|currency|valid_from|valid_until) .* (contains / or @|contains a character that cannot be printed|is longer than|is not a time|names no time zone|is in the future|is outside|is before observed_at|is not a number|is not finite|is negative|is a placeholder, not a price|is no spot instance|is not per instance and hour|is not USD|is after the time of the price|is not after the time of the price|is none of|is not a positive number|is not a whole number|is more than|is not within a second and a year|is above the capacity|is far above on-demand|is not true or false)', 1, 's')]
END, '');

-- Where instances are rented, and what was observed there (M1.1, M1.2). Narrow tables, no primary keys (decision 1).
CREATE TABLE markets (
    mid INTEGER NOT NULL,
    provider VARCHAR NOT NULL,
    region VARCHAR NOT NULL,
    zone VARCHAR NOT NULL,
    instance_type VARCHAR NOT NULL
);

-- product is '' for availability.
CREATE TABLE series (
    sid INTEGER NOT NULL,
    mid INTEGER NOT NULL,
    source VARCHAR NOT NULL,
    kind VARCHAR NOT NULL CHECK (kind IN ('price', 'availability')),
    product VARCHAR NOT NULL
);

-- USD per instance-hour. on_demand_usd: the list price stated beside the spot price, null if none was.
CREATE TABLE price (
    sid INTEGER NOT NULL,
    observed_at TIMESTAMPTZ NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    price_usd DOUBLE NOT NULL,
    on_demand_usd DOUBLE,
    batch INTEGER NOT NULL
);

-- capacity, gap_seconds and kind stand in every row: as attributes of the series a later file could change what an earlier read saw.
CREATE TABLE availability (
    sid INTEGER NOT NULL,
    observed_at TIMESTAMPTZ NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    available INTEGER NOT NULL,
    capacity INTEGER,
    gap_seconds DOUBLE,
    kind VARCHAR,
    truncated BOOLEAN,
    batch INTEGER NOT NULL
);

-- fingerprint: content, reader, options, rule and path together; content: the bytes alone.
CREATE TABLE imports (
    batch INTEGER NOT NULL,
    fingerprint VARCHAR NOT NULL,
    content VARCHAR NOT NULL,
    reader VARCHAR NOT NULL,
    file VARCHAR NOT NULL,
    options VARCHAR NOT NULL,
    known_at_rule VARCHAR NOT NULL,
    assumptions VARCHAR NOT NULL,
    imported_at TIMESTAMPTZ,
    added BIGINT NOT NULL,
    repeated BIGINT NOT NULL,
    rejected BIGINT NOT NULL
);

-- Rows that cannot be used, as found (JSON), with the reason; line 0 = unknown.
CREATE TABLE rejected (
    batch INTEGER NOT NULL,
    file VARCHAR NOT NULL,
    line BIGINT NOT NULL,
    raw VARCHAR NOT NULL,
    reason VARCHAR NOT NULL
);

-- What was assumed instead of measured, in words.
CREATE TABLE assumptions (
    market VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    text VARCHAR NOT NULL
);

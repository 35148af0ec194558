-- Pages of fetches that have not ended (decision 59): no observations yet, so no export, view or reader includes them.
CREATE TABLE staged_pages (
    feed VARCHAR NOT NULL,
    logical_at TIMESTAMPTZ NOT NULL,
    page BIGINT NOT NULL,
    part VARCHAR NOT NULL,
    options VARCHAR NOT NULL,
    followed_since TIMESTAMPTZ NOT NULL,
    requests BIGINT NOT NULL,
    watermark VARCHAR NOT NULL,
    kinds VARCHAR[] NOT NULL,
    batches BLOB[] NOT NULL
);

-- What each live feed delivered at each logical time, and how far it has been read (watermark: JSON of the source's own).
CREATE TABLE fetches (
    feed VARCHAR NOT NULL,
    logical_at TIMESTAMPTZ NOT NULL,
    status VARCHAR NOT NULL,
    added BIGINT NOT NULL,
    repeated BIGINT NOT NULL,
    rejected BIGINT NOT NULL,
    requests BIGINT NOT NULL,
    watermark VARCHAR NOT NULL,
    reason VARCHAR NOT NULL
);

-- Alarms by what they are about: raised at a logical time, cleared at another (null while they stand).
CREATE TABLE alarms (
    kind VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    raised_at TIMESTAMPTZ NOT NULL,
    cleared_at TIMESTAMPTZ,
    severity VARCHAR NOT NULL,
    text VARCHAR NOT NULL
);

-- Alarms by what they are about: raised at a logical time, cleared at another (null while they stand).
-- began_at: when what is wrong began, as it was seen when the alarm was raised.
CREATE TABLE alarms (
    kind VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    raised_at TIMESTAMPTZ NOT NULL,
    cleared_at TIMESTAMPTZ,
    severity VARCHAR NOT NULL,
    text VARCHAR NOT NULL,
    began_at TIMESTAMPTZ NOT NULL
);

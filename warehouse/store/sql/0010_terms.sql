-- Terms of jobs that were changed after they were added, known from known_at on (M1.2, M2.9): spec is the whole job as in jobs.
-- At a time the row with the newest known_at by then counts, and of equal ones that with the highest revision; before the first of
-- them what stands in jobs.
CREATE TABLE terms (
    job VARCHAR NOT NULL,
    known_at TIMESTAMPTZ NOT NULL,
    revision INTEGER NOT NULL,
    spec VARCHAR NOT NULL,
    deadline_at TIMESTAMPTZ NOT NULL
);

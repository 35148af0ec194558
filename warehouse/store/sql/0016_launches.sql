-- Own launches in reports: spot instances asked for, granted and lost, and minutes they were held; null if not reported.
ALTER TABLE reports ADD COLUMN asked INTEGER;
ALTER TABLE reports ADD COLUMN granted INTEGER;
ALTER TABLE reports ADD COLUMN lost INTEGER;
ALTER TABLE reports ADD COLUMN held_minutes DOUBLE;

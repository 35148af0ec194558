-- Minutes of work between two checkpoints that an owner measured (M12.9); null if not reported.
ALTER TABLE reports ADD COLUMN checkpoint_minutes DOUBLE;

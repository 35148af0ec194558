-- In which market a job that may move ran when it was reported (M11.1): the name of a market, null where it was not said.
ALTER TABLE reports ADD COLUMN market VARCHAR;

-- Whether the owner ended the job before its work was done; null in reports of earlier versions, which could not say so.
ALTER TABLE reports ADD COLUMN withdrawn BOOLEAN;

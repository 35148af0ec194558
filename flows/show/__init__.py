"""Output as values: tables, charts, sections and pages, and the only code that depends on terminals or HTML.

An answer consists of blocks: sentences (plain ``str``), `Notes`, `Verbatim`, `Table`, `Figure`,
`Figures`, `Fold`, `Banner` and `Section`. `slackwater.flows.show.terminal` prints them, `slackwater.flows.show.page`
writes them as an HTML file. Both take headings, units and number formats from the blocks, so each
column is described in a single place.
"""

"""Pairs of Avro schemas, writer and reader, with the answers of Java's library.

`invalid` stands for every error at parsing.  Not here: names with `$`, which Pulsar's broker allows
by a setting of the library, and defaults that are not of their type, at which it fails.
"""

CASES = [
    (
        '{"type":"enum","name":"E","symbols":["A","B"]}',
        '{"type":"enum","name":"E","symbols":["A"]}',
        "yes different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["A","B"]}',
        '{"type":"enum","name":"E","symbols":["A"],"default":"A"}',
        "yes different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["A"]}',
        '{"type":"enum","name":"F","symbols":["A"]}',
        "no different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["A"]}',
        '{"type":"enum","name":"F","aliases":["E"],"symbols":["A"]}',
        "yes different",
    ),
    (
        '{"type":"enum","name":"E","namespace":"x","symbols":["A"]}',
        '{"type":"enum","name":"E","namespace":"y","symbols":["A"]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"E","fields":[]}',
        '{"type":"record","name":"F","fields":[]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"E","fields":[]}',
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}',
        "no different",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"b","type":"int"}]}',
        '{"type":"record","name":"E","fields":[{"name":"a","aliases":["b"],"type":"long"}]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"b","type":"int"}]}',
        '{"type":"record","name":"F","fields":[{"name":"a","aliases":["b"],"type":"long"}]}',
        "no different",
    ),
    (
        '["int","string"]',
        '["int","string","long"]',
        "yes different",
    ),
    (
        '["int","string"]',
        '"string"',
        "no different",
    ),
    (
        '["string"]',
        '"string"',
        "yes different",
    ),
    (
        '"int"',
        '["string","null"]',
        "no different",
    ),
    (
        '{"type":"array","items":"int"}',
        '["null",{"type":"array","items":"string"}]',
        "no different",
    ),
    (
        '{"type":"fixed","name":"E","size":2}',
        '{"type":"fixed","name":"E","size":3}',
        "no different",
    ),
    (
        '{"type":"fixed","name":"E","namespace":"a","size":2}',
        '{"type":"fixed","name":"E","size":2}',
        "yes different",
    ),
    (
        '"bytes"',
        '"string"',
        "yes different",
    ),
    (
        '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        '{"type":"bytes","logicalType":"decimal","precision":8,"scale":3}',
        "yes different",
    ),
    (
        '["null",{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}]',
        '["null",{"type":"record","name":"B","fields":[{"name":"x","type":"int"}]}]',
        "yes different",
    ),
    (
        '["null",{"type":"enum","name":"A","symbols":["A"]}]',
        '["null",{"type":"enum","name":"B","symbols":["A"]}]',
        "no different",
    ),
    (
        '{"type":"record","name":"E","doc":"x","aliases":["Q"],"fields":[]}',
        '{"type":"record","name":"E","fields":[]}',
        "yes same",
    ),
    (
        '{"type":"record","name":"E","p":1,"fields":[]}',
        '{"type":"record","name":"E","fields":[]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int","doc":"a","aliases":["z"]}]}',
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}',
        "yes same",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int","default":1}]}',
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}',
        "yes different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}',
        '{"type":"enum","name":"E","symbols":["A","B"]}',
        "yes same",
    ),
    (
        '{"type":"string","avro.java.string":"String"}',
        '"string"',
        "yes different",
    ),
    (
        '"string"',
        '{"type":"string"}',
        "yes same",
    ),
    (
        '{"type":"record","name":"a-b","fields":[]}',
        '{"type":"record","name":"a-b","fields":[]}',
        "invalid",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":{"type":"string"}},{"name":"a","type":"int"}]}',
        '"int"',
        "invalid",
    ),
    (
        '["int","int"]',
        '"int"',
        "invalid",
    ),
    (
        '["int",["string"]]',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":"Q"}]}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"object","id":"urn:jsonschema:x","properties":{}}',
        '"int"',
        "invalid",
    ),
    (
        '"foo"',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"error","name":"E","fields":[]}',
        '{"type":"record","name":"E","fields":[]}',
        "yes same",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int","order":"ascending"}]}',
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}',
        "yes same",
    ),
    (
        '{"type":{"type":"string"}}',
        '"string"',
        "invalid",
    ),
    (
        '{"type":["string"]}',
        '"string"',
        "invalid",
    ),
    (
        '{"type":"enum","name":"E","symbols":[]}',
        '"string"',
        "no different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["a","a"]}',
        '"string"',
        "invalid",
    ),
    (
        '{"type":"enum","name":"E","symbols":["a"],"default":"b"}',
        '"string"',
        "invalid",
    ),
    (
        '"float"',
        '"double"',
        "yes different",
    ),
    (
        '"double"',
        '"float"',
        "no different",
    ),
    (
        '"int"',
        '"float"',
        "yes different",
    ),
    (
        '"null"',
        '["int","null"]',
        "yes different",
    ),
    (
        '{"type":"fixed","name":"E","size":-2}',
        '"int"',
        "invalid",
    ),
    (
        '{"name":"E","fields":[]}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","fields":[]}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","name":"E"}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a"}]}',
        '"int"',
        "invalid",
    ),
    (
        "[]",
        '["int"]',
        "yes different",
    ),
    (
        '"int"',
        "[]",
        "no different",
    ),
    (
        '{"type":"record","name":"a.b.E","fields":[{"name":"c","type":["null","E"]}]}',
        '{"type":"record","name":"E","namespace":"a.b","fields":[{"name":"c","type":["null","a.b.E"]}]}',
        "yes same",
    ),
    (
        '{"type":"record","name":"E","namespace":"a","fields":[{"name":"c","type":{"type":"record","name":"R","fields":[]}}]}',
        '{"type":"record","name":"E","namespace":"b","fields":[{"name":"c","type":{"type":"record","name":"R","fields":[]}}]}',
        "yes different",
    ),
    (
        ' {"type":"int"} trailing',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"map","values":"int"}',
        '{"type":"map","values":"long"}',
        "yes different",
    ),
    (
        '{"type":"map"}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","name":"string","fields":[]}',
        '"int"',
        "invalid",
    ),
    (
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int","default":1}]}',
        '{"type":"record","name":"E","fields":[{"name":"a","type":"int","default":1.0}]}',
        "yes different",
    ),
    (
        '["null",{"type":"enum","name":"A","namespace":"x","symbols":["A"]}]',
        '["null",{"type":"enum","name":"A","namespace":"y","symbols":["A"]}]',
        "yes different",
    ),
    (
        '["null",{"type":"fixed","name":"A","namespace":"x","size":2}]',
        '["null",{"type":"fixed","name":"A","namespace":"y","size":2}]',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","namespace":"x","fields":[{"name":"b","type":"int"}]}',
        '{"type":"record","name":"R","namespace":"y","fields":[{"name":"a","aliases":["b"],"type":"int"}]}',
        "no different",
    ),
    (
        '["null",{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}]',
        '["null",{"type":"record","name":"R","fields":[{"name":"c","type":"int"}]},{"type":"record","name":"S","fields":[{"name":"b","type":"int"}]}]',
        "no different",
    ),
    (
        '"int"',
        '["double","long"]',
        "yes different",
    ),
    (
        '"string"',
        '["bytes","null"]',
        "yes different",
    ),
    (
        '{"type":"map","values":"int"}',
        '["null",{"type":"map","values":"string"}]',
        "no different",
    ),
    (
        '{"type":"enum","name":"E","symbols":["A"]}',
        '{"type":"enum","name":"E","symbols":["B","A"]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"b","type":"int"},{"name":"a","type":"int"}]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"n","type":["null","R"]},{"name":"x","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"n","type":["null","R"]},{"name":"x","type":"long"}]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"n","type":["null","R"]},{"name":"x","type":"long"}]}',
        '{"type":"record","name":"R","fields":[{"name":"n","type":["null","R"]},{"name":"x","type":"int"}]}',
        "no different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"n","type":["null","R"]}]}',
        '{"type":"record","name":"Q","fields":[{"name":"n","type":["null","Q"]}]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"I","fields":[]}},{"name":"b","type":"I"}]}',
        '{"type":"record","name":"R","fields":[{"name":"b","type":{"type":"record","name":"I","fields":[]}}]}',
        "yes different",
    ),
    (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"I"},{"name":"b","type":{"type":"record","name":"I","fields":[]}}]}',
        '"int"',
        "no different",
    ),
]

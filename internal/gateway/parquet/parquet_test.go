package parquet_test

import (
	"encoding/hex"
	"testing"

	"stationmaster.dev/stationmaster/internal/gateway/parquet"
)

// A small file, read with Apache Arrow (pyarrow 26.0.1: names, types and rows as below) and kept.
// The e2e suite reads files of a running gateway with it each time, whose columns are so many that
// the schema's list has the long form.
func TestAFileIsTheOneThatArrowReads(t *testing.T) {
	got := parquet.File("log", []parquet.Column{
		{Name: "id", Strings: []string{"a", "", "ü"}},
		{Name: "ok", Booleans: []bool{true, false, true}},
	})
	const want = "504152311500151e151e2c1506150015061506000001000000610000000002000000c3bc" + // a page of strings
		"1500150215022c15061500150615060000" + "05" + // a page of booleans
		"1502193c48036c6f67150400150c2500180269642500001500250018026f6b00" + // the schema
		"1606191c192c26081c150c191500191802696415001606164016402608000026481c15001915001918026f6b15001606162416242648000016641606000" + "0" +
		"5e000000" + "50415231"
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
}

func TestBooleansArePackedEightToAByte(t *testing.T) {
	values := make([]bool, 10)
	values[0], values[7], values[9] = true, true, true
	got := hex.EncodeToString(parquet.File("r", []parquet.Column{{Name: "b", Booleans: values}}))
	const page = "1500150415042c15141500150615060000" + "8102"
	if got[8:8+len(page)] != page {
		t.Errorf("page %s, want %s", got[8:8+len(page)], page)
	}
}

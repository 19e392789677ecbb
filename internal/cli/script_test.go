package cli

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The test binary doubles as the program: scripts find it as stationmaster on their PATH, and
// so do the engines that it starts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"stationmaster": func() { os.Exit(Main(os.Args[1:], IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})) },
	})
}

func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			env.Defer(func() { ln.Close() })
			env.Setenv("TAKEN", ln.Addr().String())
			env.Setenv("EXAMPLES", examples)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "ready": ready, "stampede": stampede,
		},
	})
}

// exits runs a command and wants its exit code: exits 2 stationmaster up --nope.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("%v exits with %d, want %d", args[1:], got, want)
	}
}

// ready waits until the `up` of a data dir says that it is ready.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready DATADIR")
	}
	deadline := time.Now().Add(90 * time.Second)
	for {
		var access struct{ Address string }
		raw, err := os.ReadFile(ts.MkAbs(filepath.Join(args[0], "admin.json")))
		if err == nil {
			err = json.Unmarshal(raw, &access)
		}
		if err == nil {
			var resp *http.Response
			if resp, err = http.Get("http://" + access.Address + "/readyz"); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return
				}
				err = errors.New(resp.Status)
			}
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s isn't ready: %v", args[0], err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

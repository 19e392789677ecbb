package modelserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/runtimecmd"
)

func TestCommandRefusesBadArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no name":                {[]string{"--model_dir", "x"}, "--model_name", runtimecmd.Usage},
		"no folder":              {[]string{"--model_name", "m"}, "--model_dir", runtimecmd.Usage},
		"an unknown flag":        {[]string{"--nope"}, "nope", runtimecmd.Usage},
		"a stray argument":       {[]string{"m"}, "unexpected argument", runtimecmd.Usage},
		"a port too large":       {[]string{"--http_port", "70000"}, "over 65535", runtimecmd.Usage},
		"a budget for one model": {[]string{"--model_name", "m", "--model_dir", "x", "--memory_budget", "1Mi"}, "--models_config", runtimecmd.Usage},
		"a name beside a list":   {[]string{"--models_config", "x", "--model_name", "m"}, "leave --model_name", runtimecmd.Usage},
		"a list that isn't there": {[]string{"--models_config", "/does/not/exist", "--http_port", "0", "--grpc_port", "0"},
			"/does/not/exist", runtimecmd.Error},
		"a folder that isn't there": {[]string{"--model_name", "m", "--model_dir", "/does/not/exist", "--http_port", "0", "--grpc_port", "0"},
			"/does/not/exist doesn't exist", runtimecmd.Error},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := command(t.Context(), tc.args, &out, &errs); code != tc.code || !strings.Contains(errs.String(), tc.want) || strings.Count(errs.String(), "\n") > 1 {
				t.Errorf("exit %d, stderr %q; want one line with %q", code, errs.String(), tc.want)
			}
		})
	}
}

func TestCommandServesAModelUntilItIsTold(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, outWriter := io.Pipe()
	var errs bytes.Buffer
	exit := make(chan int, 1)
	go func() {
		exit <- command(ctx, []string{"--model_name", "linear", "--model_dir", "testdata/linear", "--http_port", "0", "--grpc_port", "0"}, outWriter, &errs)
		_ = outWriter.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v; stderr %s", err, errs.String())
	}
	var addr string
	if _, err := fmt.Sscanf(line, "listening http=%s grpc=", &addr); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	r := &running{http: "http://" + addr}
	eventually(t, "ready", func() bool { code, _, _ := r.call(t, "GET", "/v2/health/ready", ""); return code == 200 })
	code, _, body := r.call(t, "POST", "/v2/models/linear/infer", `{"id":"1","inputs":[{"name":"x","shape":[2,4],"datatype":"FP32","data":[[1,1,1,1],[1,0,0,2]]}]}`)
	if want := `{"model_name":"linear","id":"1","outputs":[{"name":"y","datatype":"FP32","shape":[2,3],"data":[18.5,23,25,18.5,22,23]}]}`; code != 200 || body != want {
		t.Errorf("%d %s\nwant %s", code, body, want)
	}
	if _, _, body := r.call(t, "POST", "/v1/models/linear:predict", `{"instances":[[1,1,1,1]]}`); body != `{"predictions":[[18.5,23,25]]}` {
		t.Errorf("V1: %s", body)
	}
	if _, _, body := r.call(t, "GET", "/v2/models/linear", ""); !strings.Contains(body, `"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}]`) || !strings.Contains(body, `"backend":"stationmaster"`) {
		t.Errorf("metadata: %s", body)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if code := <-exit; code != runtimecmd.OK {
		t.Errorf("exit %d, stderr %s", code, errs.String())
	}
}

func TestCommandTellsWhyAModelDoesNotLoad(t *testing.T) {
	dir := folder(t, "model.onnx")
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), []byte("this is no model"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := command(t.Context(), []string{"--model_name", "m", "--model_dir", dir, "--http_port", "0", "--grpc_port", "0"}, &out, &errs)
	if code != runtimecmd.Error || !strings.Contains(errs.String(), "stationmaster runtime onnx: model m") || !strings.Contains(errs.String(), "model.onnx") {
		t.Errorf("exit %d, stderr %s", code, errs.String())
	}
}

package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"stationmaster.dev/stationmaster/api/oip"
)

// setosa are the measurements of an iris of class 0.
var setosa = []float32{5.1, 3.5, 1.4, 0.2}

// stampede sends so many requests over REST and over gRPC at once to the service iris of a data
// dir, and wants the right answer to each: stampede d 1000 10.
func stampede(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: stampede DATADIR REST GRPC")
	}
	rest, err := strconv.Atoi(args[1])
	ts.Check(err)
	calls, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(ts.Exec("stationmaster", "kubectl", "--data-dir", args[0], "get", "isvc", "iris",
		"-o", "jsonpath={.status.address.url} {.status.components.predictor.grpcUrl}"))
	url, grpcAddr, ok := strings.Cut(ts.ReadFile("stdout"), " ")
	if !ok {
		ts.Fatalf("the service has no addresses: %q", url)
	}
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	ts.Check(err)
	defer conn.Close()
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxConnsPerHost: 0, MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()

	var wg sync.WaitGroup
	failed := make(chan error, rest+calls)
	began := time.Now()
	for range rest {
		wg.Go(func() { failed <- askREST(client, url+"/v2/models/iris/infer") })
	}
	for range calls {
		wg.Go(func() { failed <- askGRPC(conn) })
	}
	wg.Wait()
	close(failed)
	bad := 0
	for err := range failed {
		if err != nil {
			if bad++; bad <= 3 {
				ts.Logf("%v", err)
			}
		}
	}
	if bad > 0 {
		ts.Fatalf("%d of %d requests were not answered rightly", bad, rest+calls)
	}
	ts.Logf("%d requests answered within %v", rest+calls, time.Since(began).Round(time.Millisecond))
}

func askREST(c *http.Client, url string) error {
	body := fmt.Sprintf(`{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[%v,%v,%v,%v]}]}`, setosa[0], setosa[1], setosa[2], setosa[3])
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"data":[0]`) {
		return fmt.Errorf("%s %w: %s", resp.Status, err, answer)
	}
	return nil
}

func askGRPC(conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	answer, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, &oip.ModelInferRequest{
		ModelName: "iris",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{
			Name: "input", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &oip.InferTensorContents{Fp32Contents: setosa},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for _, o := range answer.GetOutputs() {
		if o.GetName() == "label" {
			return nil
		}
	}
	return fmt.Errorf("no label in the answer: %v", answer)
}

// Command s3 is a store that speaks S3's API, keeps a bucket in memory and answers nobody without
// its keys. The suite on a cluster has its models there.
//
//	s3 -listen 127.0.0.1:0 -bucket shelf -access-key id -secret-key key iris/model.onnx=model.onnx
//
// It prints the address at which it serves.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve at")
	bucket := flag.String("bucket", "shelf", "name of the bucket")
	access := flag.String("access-key", "", "access key")
	secret := flag.String("secret-key", "", "its secret")
	flag.Parse()
	if err := serve(*listen, *bucket, *access, *secret, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "s3:", err)
		os.Exit(1)
	}
}

func serve(listen, bucket, access, secret string, files []string) error {
	if access == "" || secret == "" {
		return fmt.Errorf("it needs an access key and its secret")
	}
	ctx := context.Background()
	store := s3mem.New()
	if err := store.CreateBucket(ctx, bucket); err != nil {
		return err
	}
	for _, f := range files {
		key, name, _ := strings.Cut(f, "=")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := store.PutObject(ctx, bucket, key, map[string]string{}, bytes.NewReader(text), int64(len(text))); err != nil {
			return err
		}
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	server := &http.Server{
		Handler:           gofakes3.New(store, gofakes3.WithV4Auth(map[string]string{access: secret})).Server(),
		ReadHeaderTimeout: 10 * time.Second,
	}
	return server.Serve(ln)
}

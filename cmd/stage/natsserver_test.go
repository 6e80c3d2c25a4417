package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptNATS runs a NATS server that wants a login, until the end of the script, and puts
// its URL into a variable:
//
//	nats URL user password
//
// A third word changes the server:
//
//	plain   it has no JetStream
//	poor    it has a second user, poor, with the same password, who may not publish
//	hub     it has no JetStream, but a leaf node with JetStream in the domain edge
//	import  JetStream is in another account, whose API is imported below JS.other.API
func scriptNATS(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args) > 4 {
		ts.Fatalf("usage: nats VARIABLE user password [plain|poor|hub|import]")
	}
	options := &server.Options{
		Host: "127.0.0.1", Port: -1, Username: args[1], Password: args[2], JetStream: true, StoreDir: ts.MkAbs("." + args[0]), NoSigs: true, NoLog: true,
	}
	switch args = append(args, ""); args[3] {
	case "plain":
		options.JetStream = false
	case "hub":
		options.JetStream = false
		options.LeafNode.Host, options.LeafNode.Port = "127.0.0.1", -1
		options.LeafNode.Username, options.LeafNode.Password = args[1], args[2]
	case "poor":
		options.Users = []*server.User{{
			Username: "poor", Password: args[2],
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{">"}}},
		}, {Username: args[1], Password: args[2]}}
		options.Username, options.Password = "", ""
	}
	if args[3] == "import" {
		options = importOptions(ts, options)
	}
	srv := startScriptNATS(ts, options)
	ts.Setenv(args[0], srv.ClientURL())
	if args[3] == "hub" {
		addLeaf(ts, options, args[0])
	}
}

// importOptions configure a server whose user is in an account without JetStream. The
// account imports the API of one that has it, and the subjects that a stage publishes on.
func importOptions(ts *testscript.TestScript, plain *server.Options) *server.Options {
	var exports, imports strings.Builder
	for _, subject := range []string{"$JS.ACK.>", "rows.>", "results.>", "audit.>", "journal.>", "lane.>", "batches.>", "dedupe.>", "$O.>"} {
		fmt.Fprintf(&exports, "{service: %q}\n", subject)
		fmt.Fprintf(&imports, "{service: {account: OTHER, subject: %q}}\n", subject)
	}
	path := ts.MkAbs("import.conf")
	ts.Check(os.WriteFile(path, fmt.Appendf(nil, `
		jetstream {store_dir: %q}
		accounts {
			OTHER {jetstream: enabled, exports: [{service: "$JS.API.>", response_type: stream}, %s]}
			APP {
				users: [{user: %q, password: %q}]
				imports: [{service: {account: OTHER, subject: "$JS.API.>"}, to: "JS.other.API.>"}, %s]
			}
		}`, plain.StoreDir, &exports, plain.Username, plain.Password, &imports), 0o600))
	options, err := server.ProcessConfigFile(path)
	ts.Check(err)
	options.Host, options.Port, options.NoSigs, options.NoLog = plain.Host, plain.Port, true, true
	return options
}

// addLeaf starts the leaf node of a hub. It is in another directory than the hub's, and in
// the domain edge.
func addLeaf(ts *testscript.TestScript, hub *server.Options, name string) {
	to := &url.URL{
		Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(hub.LeafNode.Port)),
		User: url.UserPassword(hub.LeafNode.Username, hub.LeafNode.Password),
	}
	leaf := startScriptNATS(ts, &server.Options{
		DontListen: true, JetStream: true, JetStreamDomain: "edge", StoreDir: ts.MkAbs("." + name + "-leaf"), NoSigs: true, NoLog: true,
		FeatureFlags: map[string]bool{server.FeatureFlagJsAckFormatV2: true}, // acks name domain and account
		LeafNode:     server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{to}}}},
	})
	for end := time.Now().Add(time.Minute); leaf.NumLeafNodes() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("the leaf node does not connect to its hub")
		}
	}
}

// startScriptNATS starts a server that stops with the script.
func startScriptNATS(ts *testscript.TestScript, options *server.Options) *server.Server {
	options.AuthTimeout = 60 // in seconds; a busy machine takes longer than the usual two
	srv, err := server.NewServer(options)
	ts.Check(err)
	srv.Start()
	ts.Defer(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		ts.Fatalf("the NATS server does not start")
	}
	return srv
}

// scriptContext writes a file in which variables are expanded, such as a context of the nats CLI:
//
//	context config/nats/context/prod.json {"url":"$PROD"}
func scriptContext(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: context file text…")
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	ts.Check(os.WriteFile(path, []byte(strings.Join(args[1:], " ")), 0o600))
}

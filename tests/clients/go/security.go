package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security is how the clients connect: CONFORMANCE_SECURITY in the environment; without it, in the clear.
type security struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Token       string `json:"token"`
	User        string `json:"user"`
	Password    string `json:"password"`
}

// connection returns the options by which a client connects.
func connection(bootstrap string) []kgo.Opt {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...)}
	var given security
	if text, isSet := os.LookupEnv("CONFORMANCE_SECURITY"); isSet {
		check(json.Unmarshal([]byte(text), &given))
	}
	if given.CA != "" {
		options = append(options, kgo.DialTLSConfig(given.tls()))
	}
	if given.Token != "" {
		options = append(options, kgo.SASL(oauth.Oauth(given.readToken)))
	}
	if given.User != "" {
		options = append(options, kgo.SASL(scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism()))
	}
	return options
}

// readToken returns the bearer token with which the client logs in now.
func (given security) readToken(context.Context) (oauth.Auth, error) {
	token, err := os.ReadFile(given.Token)
	return oauth.Auth{Token: string(token)}, err
}

func (given security) tls() *tls.Config {
	trusted, err := os.ReadFile(given.CA)
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if given.Certificate != "" {
		own, err := tls.LoadX509KeyPair(given.Certificate, given.Key)
		check(err)
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

// How the clients connect: CONFORMANCE_SECURITY in the environment is a JSON object; without it, in the clear.
import { readFileSync } from 'node:fs'

const { ca, certificate, key, token, mechanism, user, password } = JSON.parse(process.env.CONFORMANCE_SECURITY ?? '{}')

const content = file => file && readFileSync(file)

// Node's options for connections by TLS; undefined for connections in the clear.
export const tls = ca && { ca: content(ca), cert: content(certificate), key: content(key) }

// Reads the bearer token with which the client logs in; undefined if it needs none.
export const readToken = token && (() => readFileSync(token, 'utf8'))

// The password by which the client logs in, as both clients name its parts; undefined if it needs none.
export const login = user && { mechanism, username: user, password }

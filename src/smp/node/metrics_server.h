// MetricsServer: the daemon's metrics by HTTP, as Prometheus asks for them.
//
// It answers GET and HEAD of /metrics, one request a connection, in turns of the executor. Who says
// nothing, too much or too slowly is closed; who comes while all places are taken waits for one.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/asio_executor.h"
#include "base/lifetime.h"
#include "base/log.h"

namespace unreft::smp {

// Single-threaded on the executor, which outlives it.
class MetricsServer {
 public:
  // `text` makes the answer. `listen`: ADDRESS:PORT, [ADDRESS]:PORT or PORT of 127.0.0.1, as
  // numbers; port 0: a free one. InvalidArgument; Unavailable when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(AsioExecutor& executor,
                                                              const std::string& listen,
                                                              std::function<std::string()> text);
  ~MetricsServer();

  // ADDRESS:PORT, with the port that it got.
  const std::string& address() const { return address_; }

 private:
  struct Connection;
  struct Acceptor;

  MetricsServer(std::unique_ptr<Acceptor> acceptor, std::function<std::string()> text);
  void Accept();
  void AcceptLater();
  void Read(std::list<Connection>::iterator connection);
  void Answer(std::list<Connection>::iterator connection);
  void Close(std::list<Connection>::iterator connection);

  std::unique_ptr<Acceptor> acceptor_;
  std::function<std::string()> text_;
  std::string address_;
  std::list<Connection> connections_;
  bool is_accepting_ = false;
  Lifetime lifetime_;
};

// The answer to what came, up to the empty line; empty while that has not come. Pure.
std::string HttpAnswer(const std::string& request, const std::function<std::string()>& text);

}  // namespace unreft::smp

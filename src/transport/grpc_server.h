// GrpcServer: the calls and reads that others make of this node.
//
// Used in turns of the executor. A request is read and checked on a thread of gRPC's, which posts
// it; the answer may be given in any later turn.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <map>
#include <memory>
#include <string>

#include "transport/acceptor.h"
#include "transport/grpc_identity.h"
#include "transport/grpc_transport.h"

namespace unreft {

class GrpcServer {
 public:
  // Unavailable when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Executor& executor,
                                                           const GrpcTransportOptions& options,
                                                           const GrpcIdentity& identity);
  // Breaks every connection and waits until gRPC has let go of the requests.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  int port() const { return acceptor_->port(); }

  void Serve(const std::string& method, Transport::CallHandler handler);
  void ServeReads(Transport::ReadHandler handler);

 private:
  class Rpc;
  class Service;

  GrpcServer(Executor& executor, const GrpcTransportOptions& options, const GrpcIdentity& identity);
  void HandleCall(const std::string& method, std::string request, std::shared_ptr<Rpc> rpc);
  void HandleRead(std::string request, uint64_t bytes, std::shared_ptr<Rpc> rpc);

  // Shared with the turn that runs one, which may replace it.
  std::map<std::string, std::shared_ptr<Transport::CallHandler>> call_handlers_;
  std::shared_ptr<Transport::ReadHandler> read_handler_;
  const std::shared_ptr<GrpcServer*> self_;  // dies with the server, in a turn
  const std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // goes before the server
};

}  // namespace unreft

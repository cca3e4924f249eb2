#include "transport/grpc_peer.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

namespace unreft {

std::string GrpcPeer(const grpc::CallbackServerContext& context) {
  std::string peer = context.peer();  // "ipv4:10.0.0.1:40123", "unix:"
  if (const size_t colon = peer.rfind(':'); colon != std::string::npos) peer.resize(colon);
  const auto auth = context.auth_context();
  if (auth == nullptr) return peer;
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_URI_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
      peer.append(" ").append(value.data(), value.size());
    }
  }
  return peer;
}

}  // namespace unreft

#!/usr/bin/python3
"""Processes that share an XRC domain by a file, with pyverbs: two receivers, one that makes the target, and a sender.

Prints how many messages arrived, each in the process whose queue it named."""

import os
import sys
import tempfile
from multiprocessing import Barrier, Process, Queue, SimpleQueue

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttrEx
from pyverbs.srq import SRQ, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

RECEIVERS, MESSAGES, SIZE = 2, 200, 1024
INIT = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS


def device():
    return Context(name="roce0")


def domain(context, path):
    fd = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    init = XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, fd)
    return XRCD(context, init)


def attributes(context, peer):
    route = GlobalRoute(dgid=GID(context.query_gid(1, 0).gid), sgid_index=0)
    attr = QPAttr(qp_state=e.IBV_QPS_RTR)
    attr.path_mtu, attr.dest_qp_num, attr.rq_psn, attr.min_rnr_timer = e.IBV_MTU_1024, peer, 0, 1
    attr.max_dest_rd_atomic = 1
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    return attr


def to_init(qp):
    attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE
    qp.modify(attr, INIT)


def text(receiver, number):
    return f"message {number} for receiver {receiver}".ljust(SIZE)


def create(path, to_creator, of_target, over):
    context = device()
    xrcd = domain(context, path)
    init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd)
    qp = QP(context, init)
    to_init(qp)
    mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
    qp.modify(attributes(context, to_creator.get()), mask | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
    for _ in range(RECEIVERS + 1):
        of_target.put(qp.qp_num)
    over.wait()
    qp.close()


def receive(path, me, queues, of_target, opened, over, got):
    context = device()
    xrcd = domain(context, path)
    pd, cq = PD(context), CQ(context, MESSAGES)
    mr = MR(pd, SIZE * MESSAGES, e.IBV_ACCESS_LOCAL_WRITE)
    init = SrqInitAttrEx(max_wr=MESSAGES)
    init.srq_type, init.pd, init.xrcd, init.cq = e.IBV_SRQT_XRC, pd, xrcd, cq
    init.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_CQ | e.IBV_SRQ_INIT_ATTR_XRCD
    srq = SRQ(context, init)
    for number in range(MESSAGES):
        srq.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[SGE(mr.buf + number * SIZE, SIZE, mr.lkey)]))
    queues.put((me, srq.get_srq_num()))
    target = of_target.get()
    opened.wait()
    arrived = 0
    while arrived < MESSAGES:
        for wc in cq.poll(16)[1]:
            number = wc.wr_id
            assert wc.status == e.IBV_WC_SUCCESS and wc.qp_num == target, wc
            assert mr.read(SIZE, number * SIZE).decode() == text(me, number), number
            arrived += 1
    got.put(arrived)
    over.wait()


def send(queues, to_creator, of_target, opened, over):
    context = device()
    pd, cq = PD(context), CQ(context, 16)
    mr = MR(pd, SIZE, e.IBV_ACCESS_LOCAL_WRITE)
    init = QPInitAttrEx(
        qp_type=e.IBV_QPT_XRC_SEND, comp_mask=e.IBV_QP_INIT_ATTR_PD, pd=pd, scq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=0))
    qp = QP(context, init)
    numbers = dict(queues.get() for _ in range(RECEIVERS))
    to_creator.put(qp.qp_num)
    target = of_target.get()
    to_init(qp)
    mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
    qp.modify(attributes(context, target), mask)
    attr = QPAttr(qp_state=e.IBV_QPS_RTS)
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn, attr.max_rd_atomic = 16, 7, 7, 0, 1
    qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN
              | e.IBV_QP_MAX_QP_RD_ATOMIC)
    opened.wait()
    for number in range(MESSAGES):
        for receiver, srq in numbers.items():
            mr.write(text(receiver, number), SIZE)
            wr = SendWR(wr_id=number, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, SIZE, mr.lkey)],
                        send_flags=e.IBV_SEND_SIGNALED)
            wr.set_qp_type_xrc(srq)
            qp.post_send(wr)
            done = []
            while not done:
                done = cq.poll(1)[1]
            assert done[0].status == e.IBV_WC_SUCCESS, done[0]
    over.wait()


def main():
    path = os.path.join(tempfile.mkdtemp(), "domain")
    queues, to_creator, of_target, got = Queue(), SimpleQueue(), Queue(), Queue()
    opened, over = Barrier(RECEIVERS + 1), Barrier(RECEIVERS + 2)
    all_of_them = [Process(target=create, args=(path, to_creator, of_target, over))]
    for me in range(RECEIVERS):
        all_of_them.append(Process(target=receive, args=(path, me, queues, of_target, opened, over, got)))
    all_of_them.append(Process(target=send, args=(queues, to_creator, of_target, opened, over)))
    for process in all_of_them:
        process.start()
    for process in all_of_them:
        process.join()
    if any(process.exitcode for process in all_of_them):
        sys.exit(f"exit codes: {[process.exitcode for process in all_of_them]}")
    print(f"{sum(got.get() for _ in range(RECEIVERS))} messages arrived")


main()

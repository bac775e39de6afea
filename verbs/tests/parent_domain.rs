//! Parent domains and thread domains: objects that work across them, that keep them busy, and that are refused.

use crate::common::{all_rights, embedded, options, take};
use verbs::errno::{EBUSY, EINVAL};
use verbs::{
    Access, Context, CqInitAttr, DeviceConfig, Drive, MwBind, MwBindInfo, MwType, ParentDomainInitAttr, Pd,
    PostErrorKind, QpInitAttr, RecvWr, SendFlags, SendWr, SrqInitAttr, Td, VerbsError, Wc, ah_attr_to,
};

fn parent(context: &Context, pd: &Pd, td: Option<&Td>) -> Pd {
    context.alloc_parent_domain(&ParentDomainInitAttr { pd, td }).unwrap()
}

/// Checks that destroying an object fails with EBUSY; returns the object.
#[track_caller]
fn busy<T>(result: Result<(), (VerbsError, T)>, object: &str) -> T {
    let Err((e, back)) = result else { panic!("the {object} was given up") };
    assert_eq!(e.errno(), EBUSY, "{e}");
    assert!(e.to_string().contains(&format!("the {object} is")), "{e}");
    back
}

// Objects created in a protection domain and in its parent domains work together.
#[test]
fn a_parent_domain_is_its_protection_domain() {
    let context = embedded();
    let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td());
    let (with, without) = (parent(&context, &pd, Some(&td)), parent(&context, &pd, None));
    let of_parent = parent(&context, &with, None);
    let cq = context.create_cq_ex(&CqInitAttr::new(64).parent_domain(&with)).unwrap();
    let srq = without.create_srq(&SrqInitAttr::new(8, 1)).unwrap();
    let qp = of_parent.create_qp(&QpInitAttr::rc(&cq, &cq).srq(&srq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    // A region of each domain, at both ends of a message and of a WRITE.
    let mrs = [&pd, &with, &without, &of_parent].map(|pd| pd.reg_mr(64, all_rights()).unwrap());
    for (i, from) in mrs.iter().enumerate() {
        for (k, to) in mrs.iter().enumerate() {
            let text = [b'a' + i as u8, b'0' + k as u8];
            from.write(0, &text).unwrap();
            srq.post_recv(&[RecvWr::new(1, &[to.sge(8..10).unwrap()])]).unwrap();
            let sge = [from.sge(0..2).unwrap()];
            qp.post_send(&[
                SendWr::send(2, &sge),
                SendWr::write(3, &sge, to.addr() + 16, to.rkey()).signaled(),
            ])
            .unwrap();
            assert!(take(&context, &cq, 2).iter().all(Wc::is_ok));
            assert_eq!((to.to_vec(8..10).unwrap(), to.to_vec(16..18).unwrap()), (text.into(), text.into()));
        }
    }
    // A window of one domain over a region of another, bound through a queue pair of a third.
    let mr = pd.reg_mr(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let mw = with.alloc_mw(MwType::One).unwrap();
    let bind_info = MwBindInfo::new(&mr, 0..64, Access::REMOTE_WRITE).unwrap();
    let key = qp.bind_mw(&mw, &MwBind { wr_id: 4, send_flags: SendFlags::empty(), bind_info }).unwrap();
    qp.post_send(&[SendWr::write(5, &[], mr.addr(), key).inline(b"in a window").signaled()]).unwrap();
    assert!(take(&context, &cq, 1)[0].is_ok());
    assert_eq!(mr.to_vec(0..11).unwrap(), b"in a window");
    // Address handles.
    let ud = with.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    ud.activate_ud(5).unwrap();
    let attr = ah_attr_to(context.query_gid(1, 1).unwrap(), 1);
    for pd in [&pd, &with, &without] {
        let ah = pd.create_ah(&attr).unwrap();
        ud.post_send(&[SendWr::send(6, &[]).to(&ah, ud.qp_num(), 5).signaled()]).unwrap();
        assert!(take(&context, &cq, 1)[0].is_ok());
    }
    // A different protection domain is refused, with or without a parent domain.
    let stranger = context.alloc_pd().unwrap();
    for pd in [&stranger, &parent(&context, &stranger, Some(&td))] {
        let ah = pd.create_ah(&attr).unwrap();
        let e = ud.post_send(&[SendWr::send(6, &[]).to(&ah, ud.qp_num(), 5)]).unwrap_err();
        assert_eq!((e.kind, e.errno()), (PostErrorKind::ForeignAh, EINVAL));
        let mw = pd.alloc_mw(MwType::One).unwrap();
        let bind = MwBind { wr_id: 7, send_flags: SendFlags::empty(), bind_info: MwBindInfo::unbind() };
        assert_eq!(qp.bind_mw(&mw, &bind).unwrap_err().errno(), verbs::errno::EPERM);
    }
}

#[test]
fn what_is_in_use_is_busy() {
    let context = embedded();
    let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td());
    let parent = parent(&context, &pd, Some(&td));
    let (pd, td) = (busy(pd.dealloc(), "protection domain"), busy(td.dealloc(), "thread domain"));
    // Each kind of object keeps the parent domain that it was created in busy, and no other.
    let mr = parent.reg_mr(8, Access::empty()).unwrap();
    let parent = busy(parent.dealloc(), "parent domain");
    mr.dereg().unwrap();
    let mw = parent.alloc_mw(MwType::Two).unwrap();
    let parent = busy(parent.dealloc(), "parent domain");
    mw.dealloc().unwrap();
    let srq = parent.create_srq(&SrqInitAttr::new(1, 1)).unwrap();
    let parent = busy(parent.dealloc(), "parent domain");
    srq.destroy().unwrap();
    let ah = parent.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    let parent = busy(parent.dealloc(), "parent domain");
    ah.destroy();
    let cq = context.create_cq_ex(&CqInitAttr::new(1).parent_domain(&parent)).unwrap();
    let parent = busy(parent.dealloc(), "parent domain");
    let qp = parent.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let cq = busy(cq.destroy(), "completion queue");
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    let of_parent = context.alloc_parent_domain(&ParentDomainInitAttr { pd: &parent, td: None }).unwrap();
    // A parent domain made from a parent domain belongs to the protection domain, and keeps it busy.
    parent.dealloc().unwrap();
    td.dealloc().unwrap();
    let pd = busy(pd.dealloc(), "protection domain");
    of_parent.dealloc().unwrap();
    pd.dealloc().unwrap();
    context.close().unwrap();
}

#[test]
fn queue_pairs_of_a_thread_domain_are_on_one_shard() {
    let port = verbs::port::pair(3).0;
    let context = Context::open(DeviceConfig::new(port).shards(3).drive(Drive::Embedded)).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let init = QpInitAttr::rc(&cq, &cq);
    let tds = [context.alloc_td(), context.alloc_td()];
    let parents = [0, 0, 1].map(|i| parent(&context, &pd, Some(&tds[i])));
    assert_eq!((tds[0].shard(), tds[1].shard()), (None, None));
    // A queue pair with an explicit shard does not choose the thread domain's shard.
    let aside = parents[0].create_qp(&init.on_shard(2)).unwrap();
    assert_eq!((aside.shard(), tds[0].shard()), (2, None));
    let mut qps = vec![aside];
    for round in 0..4 {
        for (parent, td) in parents.iter().zip([&tds[0], &tds[0], &tds[1]]) {
            let qp = parent.create_qp(&init).unwrap();
            assert_eq!(Some(qp.shard()), td.shard(), "round {round}");
            qps.push(qp);
        }
    }
    assert_ne!(tds[0].shard(), tds[1].shard(), "the least loaded one for each");
    assert_eq!(parents[0].create_qp(&init.on_shard(2)).unwrap().shard(), 2);
}

// A refused queue pair leaves the thread domain without a shard.
#[test]
fn a_queue_pair_that_is_refused_chooses_no_shard() {
    let context = embedded();
    let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td());
    let parent = parent(&context, &pd, Some(&td));
    let cq = context.create_cq(1).unwrap();
    let mut init = QpInitAttr::rc(&cq, &cq);
    init.cap.max_send_wr = u32::MAX;
    assert_eq!(parent.create_qp(&init).unwrap_err().errno(), EINVAL);
    assert_eq!(td.shard(), None);
    drop(parent);
    td.dealloc().unwrap();
}

#[test]
fn objects_of_another_device_are_refused() {
    let (context, other) = (embedded(), embedded());
    let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td());
    let (foreign_pd, foreign_td) = (other.alloc_pd().unwrap(), other.alloc_td());
    for init in [
        ParentDomainInitAttr { pd: &foreign_pd, td: None },
        ParentDomainInitAttr { pd: &foreign_pd, td: Some(&td) },
        ParentDomainInitAttr { pd: &pd, td: Some(&foreign_td) },
    ] {
        let e = context.alloc_parent_domain(&init).unwrap_err();
        assert_eq!(e.errno(), EINVAL, "{e}");
        assert!(e.to_string().contains("another device"), "{e}");
    }
    let parent = parent(&other, &foreign_pd, None);
    let e = context.create_cq_ex(&CqInitAttr::new(1).parent_domain(&parent)).unwrap_err();
    assert_eq!(e.errno(), EINVAL, "{e}");
    let e = context.create_cq_ex(&CqInitAttr::new(1).parent_domain(&pd)).unwrap_err();
    assert!(e.errno() == EINVAL && e.to_string().contains("needs a parent domain"), "{e}");
    // No reference is left.
    parent.dealloc().unwrap();
    for pd in [pd, foreign_pd] {
        pd.dealloc().unwrap();
    }
    for td in [td, foreign_td] {
        td.dealloc().unwrap();
    }
}
